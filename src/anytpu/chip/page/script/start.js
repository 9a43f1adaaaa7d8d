if (scene.timeline) startTimeline(scene.timeline);
if (scene.wave) startWave(scene.wave);
startUnits();
if (document.querySelector("#listing")) startListing();
main.dataset.ready = "yes";
