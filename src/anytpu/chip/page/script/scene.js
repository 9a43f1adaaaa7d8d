// Shared by all parts of the page: its data, its colours, and a player with a slider.
const main = document.querySelector("main.anytpu-report");
const scene = JSON.parse(document.getElementById("anytpu-chip").textContent);
const isDark = matchMedia("(prefers-color-scheme: dark)");
const format = (value, digits = 0) => value.toLocaleString("en-US", { maximumFractionDigits: digits });
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

function colours() {
  const style = getComputedStyle(main);
  const known = {};
  return (name) => (known[name] ??= style.getPropertyValue(`--${name}`).trim());
}

function svgElement(name, attributes, parent, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  parent?.append(made);
  return made;
}

// Buttons and a slider from 0 to `last`; `show(at)` draws a step and returns the text for screen readers.
function player(root, last, show, perSecond, first) {
  const slider = root.querySelector("input");
  const play = root.querySelector("[data-do=play]");
  let at = first;
  let timer = 0;
  slider.max = last;

  function go(number) {
    at = clamp(Math.round(number), 0, last);
    slider.value = at;
    slider.setAttribute("aria-valuetext", show(at));
    root.dataset.at = at;
  }

  function stop() {
    clearInterval(timer);
    timer = 0;
    play.textContent = "Play";
  }

  function start() {
    if (at >= last) go(0);
    play.textContent = "Pause";
    timer = setInterval(() => {
      if (at >= last) stop();
      else go(at + 1);
    }, 1000 / perSecond);
  }

  const does = {
    first: () => (stop(), go(0)),
    back: () => (stop(), go(at - 1)),
    play: () => (timer ? stop() : start()),
    next: () => (stop(), go(at + 1)),
    last: () => (stop(), go(last)),
  };
  root.addEventListener("click", (event) => does[event.target.dataset.do]?.());
  slider.addEventListener("input", () => (stop(), go(+slider.value)));
  go(first);
}
