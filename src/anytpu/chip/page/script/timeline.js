// The timeline: a canvas with a lane for each unit, redrawn for the visible part of the run.
function startTimeline(data) {
  const canvas = document.querySelector("#timeline canvas");
  const tip = document.querySelector("#timeline .tip");
  const readout = document.querySelector("#timeline .readout");
  const paper = canvas.getContext("2d");
  const LEFT = 118, ROW = 30, BAND = 26, LEVEL = 44, AXIS = 26, NARROW = 78;
  const lanes = data.strips.lanes.map((lane) => unpacked(lane, data.strips.step));
  const height = BAND + ROW * lanes.length + LEVEL * data.levels.length + AXIS;
  const view = { from: 0, to: data.cycles };
  let width = 0, left = LEFT, chosen = null, hovered = null, drag = null, waiting = false;

  function unpacked(lane, step) {
    const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer;
    const start = Float64Array.from(new Uint32Array(bytes(lane.start)), (value) => value * step);
    const length = new Uint32Array(bytes(lane.length));
    return {
      name: lane.name, start, stop: Float64Array.from(start, (value, n) => value + length[n] * step),
      kind: new Uint8Array(bytes(lane.kind)), tag: new Int16Array(bytes(lane.tag)),
      instruction: new Int32Array(bytes(lane.instruction)), count: new Uint32Array(bytes(lane.count)),
    };
  }

  // Binary search for the first of `count` sorted items that stops after a time.
  function firstOf(count, stopOf, cycles) {
    let low = 0, high = count;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (stopOf(middle) > cycles) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  const firstAfter = (lane, cycles) => firstOf(lane.stop.length, (n) => lane.stop[n], cycles);
  const firstSpan = (cycles) => firstOf(data.spans.length, (n) => data.spans[n][1], cycles);

  const x = (cycles) => left + ((cycles - view.from) / (view.to - view.from)) * (width - left);
  const cyclesAt = (at) => view.from + ((at - left) / (width - left)) * (view.to - view.from);
  const laneTop = (number) => BAND + ROW * number;

  function draw() {
    waiting = false;
    const scale = devicePixelRatio || 1;
    width = canvas.clientWidth;
    left = width < 560 ? NARROW : LEFT;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.height = `${height}px`;
    paper.setTransform(scale, 0, 0, scale, 0, 0);
    paper.clearRect(0, 0, width, height);
    const colour = colours();
    paper.font = `12px ${getComputedStyle(main).fontFamily}`;
    paper.textBaseline = "middle";
    drawAxis(colour);
    paper.save();
    paper.beginPath();
    paper.rect(left, 0, width - left, height);
    paper.clip();
    drawLayers(colour);
    lanes.forEach((lane, number) => drawLane(lane, laneTop(number), colour));
    data.levels.forEach((level, number) => drawLevel(level, laneTop(lanes.length) + LEVEL * number, colour));
    drawChosen(colour);
    paper.restore();
    drawNames(colour);
  }

  function later() {
    if (!waiting) requestAnimationFrame(draw);
    waiting = true;
  }

  function drawAxis(colour) {
    const span = view.to - view.from;
    const rough = span / Math.max((width - left) / (width < 560 ? 64 : 110), 1);
    const decade = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].map((digit) => digit * decade).find((size) => size >= rough);
    paper.textAlign = "center";
    for (let tick = Math.ceil(view.from / step) * step; tick <= view.to; tick += step) {
      paper.fillStyle = colour("grid");
      paper.fillRect(Math.round(x(tick)), 0, 1, height - AXIS + 4);
      paper.fillStyle = colour("muted");
      const text = format(tick, step < 1 ? 3 : 0);
      const half = paper.measureText(text).width / 2;
      if (x(tick) + half < width && x(tick) - half > left - 12) paper.fillText(text, x(tick), height - AXIS / 2 + 3);
    }
  }

  function drawLayers(colour) {
    paper.textAlign = "left";
    let drawn = -1;
    for (let n = firstSpan(view.from); n < data.spans.length && data.spans[n][0] < view.to; n++) {
      const [start, stop, tag] = data.spans[n];
      const from = Math.max(x(start), left), to = Math.min(x(stop), width);
      if (to < drawn + 0.5 && to - from < 0.5) continue;
      drawn = to;
      paper.globalAlpha = 0.28;
      paper.fillStyle = colour(`c${tag % 8}`);
      paper.fillRect(from, 4, Math.max(to - from - 1, 0.5), BAND - 8);
      paper.globalAlpha = 1;
      inside(data.parts[tag] ?? "", from, to, BAND / 2, colour("ink"));
    }
  }

  function inside(text, from, to, y, ink) {
    if (to - from < 34 || !text) return;
    let shown = text;
    while (shown.length > 2 && paper.measureText(shown).width > to - from - 8) shown = shown.slice(0, -1);
    if (shown.length < text.length) shown = shown.length > 3 ? `${shown.slice(0, -1)}…` : "";
    paper.fillStyle = ink;
    paper.fillText(shown, from + 4, y);
  }

  function drawLane(lane, top, colour) {
    paper.fillStyle = colour("soft");
    paper.fillRect(left, top + 3, width - left, ROW - 6);
    let drawn = -1;
    for (let n = firstAfter(lane, view.from); n < lane.start.length && lane.start[n] < view.to; n++) {
      const from = Math.max(x(lane.start[n]), left), to = Math.min(x(lane.stop[n]), width);
      // Skip events that fall into a half pixel that is painted already.
      if (to < drawn + 0.5 && to - from < 0.5) continue;
      const kind = data.kinds[lane.kind[n]];
      paper.fillStyle = colour(kind.colour);
      const wide = Math.max(to - from - (to - from > 4 ? 1 : 0), 0.7);
      paper.fillRect(from, top + 3, wide, ROW - 6);
      drawn = from + wide;
      if (wide > 60) inside(kind.name, from, to, top + ROW / 2, isDark.matches ? "#10151a" : "#ffffff");
    }
  }

  function drawLevel(level, top, colour) {
    const floor = top + LEVEL - 6, room = LEVEL - 14;
    const y = (value) => floor - (value / level.most) * room;
    const first = level.points.findIndex(([cycles]) => cycles > view.from);
    const shown = first < 0 ? [] : level.points.slice(first);
    let last = first < 0 ? level.points.at(-1)[1] : level.points[first - 1]?.[1] ?? 0;
    paper.beginPath();
    paper.moveTo(left, floor);
    paper.lineTo(left, y(last));
    for (const [cycles, value] of shown) {
      if (cycles > view.to) break;
      paper.lineTo(x(cycles), y(last));
      paper.lineTo(x(cycles), y(value));
      last = value;
    }
    paper.lineTo(width, y(last));
    paper.lineTo(width, floor);
    paper.closePath();
    paper.globalAlpha = 0.3;
    paper.fillStyle = colour(level.colour);
    paper.fill();
    paper.globalAlpha = 1;
    paper.strokeStyle = colour(level.colour);
    paper.lineWidth = 1;
    paper.stroke();
  }

  function drawNames(colour) {
    paper.textAlign = "right";
    paper.fillStyle = colour("muted");
    const name = (text, y) => {
      const words = width < 560 ? text.split(/ (.*)/, 2) : [text];
      words.forEach((word, n) => paper.fillText(word, left - 8, y + (n - (words.length - 1) / 2) * 12));
    };
    name("layer", BAND / 2);
    lanes.forEach((lane, number) => name(lane.name, laneTop(number) + ROW / 2));
    data.levels.forEach((level, number) => name(level.name, laneTop(lanes.length) + LEVEL * (number + 0.5)));
    name("cycles", height - AXIS / 2 + 3);
  }

  function drawChosen(colour) {
    for (const one of [hovered, chosen]) {
      if (!one) continue;
      const lane = lanes[one.lane], from = x(lane.start[one.n]), to = x(lane.stop[one.n]);
      paper.strokeStyle = colour("ink");
      paper.lineWidth = 2;
      paper.strokeRect(from, laneTop(one.lane) + 2, Math.max(to - from, 2), ROW - 4);
    }
  }

  function described({ lane: number, n }) {
    const lane = lanes[number], count = lane.count[n], instruction = lane.instruction[n];
    const name = data.kinds[lane.kind[n]].name;
    const cycles = lane.stop[n] - lane.start[n];
    const lines = [
      count > 1 ? `${format(count)} events, mostly ${name}` : name,
      `${format(cycles)} cycles (${format((cycles / data.clock_hz) * 1e6, 3)} µs), from ${format(lane.start[n])}`,
    ];
    if (lane.tag[n] >= 0) lines.splice(1, 0, `layer ${data.parts[lane.tag[n]] || "-"}`);
    if (instruction >= 0) {
      const text = data.instructions[instruction];
      lines.push(`instruction ${format(instruction)}${text ? `: ${text}` : ""}`);
    }
    return lines;
  }

  function stripAt(px, py) {
    const number = Math.floor((py - BAND) / ROW);
    if (px < left || number < 0 || number >= lanes.length) return null;
    const lane = lanes[number], slack = (cyclesAt(px + 3) - cyclesAt(px));
    const n = firstAfter(lane, cyclesAt(px) - slack);
    return n < lane.start.length && lane.start[n] <= cyclesAt(px) + slack ? { lane: number, n } : null;
  }

  function layerAt(px, py) {
    if (py > BAND || px < left) return null;
    const cycles = cyclesAt(px);
    const found = data.spans[firstSpan(cycles)];
    return found && found[0] <= cycles && [`layer ${data.parts[found[2]] ?? ""}`, `cycles ${format(found[0])} to ${format(found[1])}`];
  }

  function levelAt(px, py) {
    const number = Math.floor((py - laneTop(lanes.length)) / LEVEL);
    if (px < left || number < 0 || number >= data.levels.length) return null;
    const level = data.levels[number], cycles = cyclesAt(px);
    let value = 0;
    for (const [at, then] of level.points) {
      if (at > cycles) break;
      value = then;
    }
    return [`${level.name}: ${format(value)} of ${format(level.limit)} ${level.unit}`, `at cycle ${format(cycles)}`];
  }

  function showTip(lines, px, py) {
    tip.replaceChildren(...lines.map((line, n) => Object.assign(document.createElement(n ? "div" : "b"), { textContent: line })));
    tip.hidden = false;
    const room = canvas.clientWidth - tip.offsetWidth - 4;
    tip.style.left = `${clamp(px + 14, 0, Math.max(room, 0))}px`;
    tip.style.top = `${py + 16}px`;
  }

  function look(from, to) {
    const span = clamp(to - from, Math.min(8, data.cycles), data.cycles);
    const centre = (from + to) / 2;
    view.from = clamp(centre - span / 2, 0, data.cycles - span);
    view.to = view.from + span;
    canvas.dataset.from = view.from;
    canvas.dataset.to = view.to;
    later();
  }

  function zoom(factor, centre = (view.from + view.to) / 2) {
    const span = (view.to - view.from) * factor;
    const part = (centre - view.from) / (view.to - view.from);
    const from = centre - span * part;
    look(from, from + span);
  }

  function choose(number, n) {
    const lane = lanes[number];
    if (!lane || !lane.start.length) return;
    chosen = { lane: number, n: clamp(n, 0, lane.start.length - 1) };
    const start = lane.start[chosen.n], stop = lane.stop[chosen.n], span = view.to - view.from;
    if (stop > view.to || start < view.from) look((start + stop - span) / 2, (start + stop + span) / 2);
    readout.textContent = `${lane.name}: ${described(chosen).join(", ")}`;
    later();
  }

  function step(lanesDown, along) {
    if (!chosen) return choose(lanes.findIndex((lane) => lane.name === "matrix unit"), firstAfter(lanes[3], view.from));
    if (along) return choose(chosen.lane, chosen.n + along);
    const start = lanes[chosen.lane].start[chosen.n];
    for (let number = chosen.lane + lanesDown; lanes[number]; number += lanesDown) {
      if (lanes[number].start.length) return choose(number, firstAfter(lanes[number], start));
    }
  }

  const span = () => view.to - view.from;
  const keys = {
    "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: () => look(0, data.cycles),
    ArrowLeft: (event) => (event.shiftKey ? look(view.from - span() / 4, view.to - span() / 4) : step(0, -1)),
    ArrowRight: (event) => (event.shiftKey ? look(view.from + span() / 4, view.to + span() / 4) : step(0, 1)),
    ArrowUp: () => step(-1, 0), ArrowDown: () => step(1, 0),
  };
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key](event);
  });
  canvas.addEventListener("wheel", (event) => {
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (!event.ctrlKey && !event.metaKey && !sideways) return; // The page scrolls.
    event.preventDefault();
    if (sideways) look(view.from + (event.deltaX / width) * span(), view.to + (event.deltaX / width) * span());
    else zoom(Math.exp(clamp(event.deltaY, -120, 120) / 240), cyclesAt(Math.max(event.offsetX, left)));
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    drag = { px: event.offsetX, from: view.from, to: view.to, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (drag) {
      const cycles = ((drag.px - event.offsetX) / (width - left)) * (drag.to - drag.from);
      drag.moved ||= Math.abs(drag.px - event.offsetX) > 3;
      if (drag.moved) {
        tip.hidden = true;
        look(drag.from + cycles, drag.to + cycles);
      }
      return;
    }
    hovered = stripAt(event.offsetX, event.offsetY);
    const said = hovered ? described(hovered)
      : layerAt(event.offsetX, event.offsetY) ?? levelAt(event.offsetX, event.offsetY);
    if (said) showTip(said, event.offsetX, event.offsetY);
    else tip.hidden = true;
    later();
  });
  canvas.addEventListener("pointerup", (event) => {
    const found = drag && !drag.moved && stripAt(event.offsetX, event.offsetY);
    drag = null;
    if (found) choose(found.lane, found.n);
  });
  canvas.addEventListener("pointercancel", () => { drag = null; });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; hovered = null; later(); });
  canvas.addEventListener("dblclick", (event) => zoom(0.25, cyclesAt(Math.max(event.offsetX, left))));
  document.querySelector("#timeline .tools").addEventListener("click", (event) => {
    const does = { in: () => zoom(0.5), out: () => zoom(2), all: () => look(0, data.cycles),
      left: () => look(view.from - span() / 2, view.to - span() / 2),
      right: () => look(view.from + span() / 2, view.to + span() / 2) };
    does[event.target.dataset.zoom]?.();
  });
  const layers = document.querySelector("#timeline select");
  layers?.addEventListener("change", () => {
    const found = data.ranges[+layers.value];
    if (!found) return look(0, data.cycles);
    const margin = Math.max((found[1] - found[0]) * 0.05, 4);
    look(found[0] - margin, found[1] + margin);
  });
  new ResizeObserver(later).observe(canvas.parentElement);
  isDark.addEventListener("change", later);
  look(0, data.cycles);
  draw();
}
