"use strict";
const page = document.querySelector("main");
const note = document.createElement("p");
note.className = "warning";
page.before(note);

async function update() {
  try {
    const answer = await fetch("/runs" + location.search, { cache: "no-store" });
    const text = await answer.text();
    if (!answer.ok) throw new Error(text);
    note.textContent = "";
    if (text !== page.dataset.shown) {
      page.dataset.shown = text;
      const open = [...page.querySelectorAll("details")].map((details) => details.open);
      const place = window.scrollY;
      page.innerHTML = text;
      page.querySelectorAll("details").forEach((details, index) => (details.open = Boolean(open[index])));
      window.scrollTo(0, place);
    }
  } catch (error) {
    note.textContent = "The page is not renewed: " + error.message + ". It tries again each second.";
  }
  setTimeout(update, 1000);
}
setTimeout(update, 1000);
