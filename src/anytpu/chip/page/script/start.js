if (scene.wave) startWave(scene.wave);
startUnits();
if (document.querySelector("#listing")) startListing();
if (innerWidth > 640) document.querySelectorAll("details.fold").forEach((one) => { one.open = true; });
main.dataset.ready = "yes";
