// What is shown of the map, and how mouse, fingers, keys and buttons change it. One script with heatmap.js.
const button = (name) => document.getElementById(name);
let queued = false;
function redraw() {
  if (queued) return;
  queued = true;
  requestAnimationFrame(() => {
    queued = false;
    panels.forEach(draw);
    const wide = view.right - view.left >= bins, tall = view.bottom - view.top >= rows;
    button("reset").disabled = wide && tall;
    button("out").disabled = wide;
    button("more").disabled = tall;
    button("left").disabled = view.left <= 0;
    button("right").disabled = view.right >= bins;
    button("up").disabled = view.top <= 0;
    button("down").disabled = view.bottom >= rows;
    const first = data.ranks[view.top], last = data.ranks[view.bottom - 1];
    where.textContent = `${duration(since(view.left), span())} to ${duration(since(view.right), span())}, ${first === last ? `rank ${first}` : `ranks ${first} to ${last}`}`;
  });
}
const clamp = (value, low, high) => Math.max(low, Math.min(high, value));
function setView(left, right, top, bottom) {
  // Not a row's borders but its number are rounded, so that moving never changes how many there are.
  const w = clamp(right - left, Math.min(8, bins), bins), h = clamp(Math.round(bottom - top), 1, rows);
  view.left = clamp(left, 0, bins - w); view.right = view.left + w;
  view.top = clamp(Math.round(top), 0, rows - h); view.bottom = view.top + h;
  redraw();
}
function zoom(factor, at = (view.left + view.right) / 2) {
  setView(at - (at - view.left) * factor, at + (view.right - at) * factor, view.top, view.bottom);
}
function zoomRanks(factor) {
  const h = clamp(Math.round((view.bottom - view.top) * factor), Math.min(4, rows), rows);
  const middle = cursor.shown ? cursor.row + 0.5 : (view.top + view.bottom) / 2;
  setView(view.left, view.right, middle - h / 2, middle - h / 2 + h);
}
const reset = () => setView(0, bins, 0, rows);

function cell(panel, event) {
  const box = panel.canvas.getBoundingClientRect(), { area } = panel;
  const fx = (event.clientX - box.left - area.x) / area.w, fy = (event.clientY - box.top - area.y) / area.h;
  return {
    inside: fx >= 0 && fx < 1 && fy >= 0 && fy < 1,
    bin: clamp(Math.floor(view.left + fx * (view.right - view.left)), 0, bins - 1),
    row: clamp(Math.floor(view.top + fy * (view.bottom - view.top)), 0, rows - 1),
    at: view.left + fx * (view.right - view.left),
    line: view.top + fy * (view.bottom - view.top),
  };
}
function describe(row, bin) {
  const rank = data.ranks[row], size = (data.end_ns - data.start_ns) / bins;
  const step = data.steps.find(([, start, end]) => time(bin) + size / 2 >= start && time(bin) + size / 2 < end);
  const lines = panels.map((panel) => {
    const value = panel.values[row * bins + bin];
    return [panel.title, value === UNKNOWN ? "unknown" : ((100 * value) / TOP).toFixed(1) + " %"];
  });
  return { head: `rank ${rank}${step ? ", step " + step[0] : ""}`, time: `${duration(since(bin), span())}, a cell is ${duration(size, size)}`, lines, why: data.why[rank] };
}
function showTip(row, bin, x, y) {
  const found = describe(row, bin);
  tip.replaceChildren();
  const head = document.createElement("b");
  head.textContent = found.head;
  tip.append(head, found.time);
  for (const [name, value] of found.lines) {
    const line = document.createElement("div");
    line.textContent = `${name}: ${value}`;
    tip.append(line);
  }
  if (found.why) tip.append(found.why);
  tip.style.display = "block";
  tip.style.left = clamp(x + 14, 4, innerWidth - tip.offsetWidth - 4) + "px";
  tip.style.top = (y + 18 + tip.offsetHeight > innerHeight ? y - tip.offsetHeight - 12 : y + 18) + "px";
}
function speak() {
  const found = describe(cursor.row, cursor.bin);
  live.textContent = `${found.head}, ${found.time}: ${found.lines.map((line) => line.join(" ")).join(", ")}${found.why ? ". " + found.why : ""}`;
}

// One finger moves the time, two fingers zoom it; up and down stays the page's own scrolling.
function onTouch(panel) {
  const fingers = new Map();
  let held = null;
  const middle = () => [...fingers.values()].reduce((sum, x) => sum + x, 0) / fingers.size;
  const gap = () => { const xs = [...fingers.values()]; return xs.length > 1 ? Math.max(20, Math.abs(xs[0] - xs[1])) : 0; };
  const hold = () => { held = fingers.size ? { middle: middle(), gap: gap(), left: view.left, right: view.right } : null; };
  const share = (x) => (x - panel.canvas.getBoundingClientRect().left - panel.area.x) / panel.area.w;
  return {
    down(event) { fingers.set(event.pointerId, event.clientX); hold(); },
    up(event) { fingers.delete(event.pointerId); hold(); },
    move(event) {
      if (!fingers.has(event.pointerId)) return;
      fingers.set(event.pointerId, event.clientX);
      if (fingers.size < 2 && Math.abs(middle() - held.middle) < 8) return;
      tip.style.display = "none";
      const width = (held.right - held.left) * (held.gap && gap() ? held.gap / gap() : 1);
      const left = held.left + share(held.middle) * (held.right - held.left) - share(middle()) * width;
      setView(left, left + width, view.top, view.bottom);
    },
  };
}

for (const panel of panels) {
  let drag = null;
  const { canvas } = panel, touch = onTouch(panel);
  canvas.addEventListener("pointermove", (event) => {
    if (event.pointerType === "touch") return touch.move(event);
    const found = cell(panel, event);
    if (drag) {
      drag.end = found;
      draw(panel);
      const context = canvas.getContext("2d"), { area } = panel;
      const x = (at) => area.x + ((clamp(at, view.left, view.right) - view.left) / (view.right - view.left)) * area.w;
      context.fillStyle = style("--cursor"); context.globalAlpha = 0.25;
      context.fillRect(Math.min(x(drag.from.at), x(found.at)), area.y, Math.abs(x(found.at) - x(drag.from.at)), area.h);
      context.globalAlpha = 1;
    }
    if (found.inside) showTip(found.row, found.bin, event.clientX, event.clientY);
    else tip.style.display = "none";
  });
  // A finger that is lifted leaves too: what it tapped stays told.
  canvas.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") tip.style.display = "none"; });
  canvas.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "touch") touch.down(event);
    const from = cell(panel, event);
    if (!from.inside) return;
    if (event.pointerType === "mouse") { drag = { from, end: from }; canvas.setPointerCapture(event.pointerId); }
    Object.assign(cursor, { row: from.row, bin: from.bin, shown: true });
    showTip(from.row, from.bin, event.clientX, event.clientY);
    redraw();
  });
  canvas.addEventListener("pointerup", (event) => {
    touch.up(event);
    if (!drag) return;
    const { from, end } = drag, wide = Math.abs(end.at - from.at) > (view.right - view.left) * 0.01;
    drag = null;
    if (!wide) return redraw();
    const tall = Math.abs(end.line - from.line) > 1.5 && view.bottom - view.top > 8;
    setView(Math.min(from.at, end.at), Math.max(from.at, end.at),
      tall ? Math.floor(Math.min(from.line, end.line)) : view.top, tall ? Math.ceil(Math.max(from.line, end.line)) : view.bottom);
  });
  canvas.addEventListener("pointercancel", (event) => { touch.up(event); drag = null; redraw(); });
  canvas.addEventListener("dblclick", reset);
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.shiftKey && document.activeElement !== canvas) return;
    event.preventDefault();
    zoom(event.deltaY + event.deltaX > 0 ? 1.25 : 0.8, cell(panel, event).at);
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const step = event.shiftKey ? Math.max(1, Math.round((view.right - view.left) / 10)) : Math.max(1, Math.round((view.right - view.left) / 200));
    const moves = { ArrowLeft: [0, -step], ArrowRight: [0, step], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (moves[event.key]) {
      const [row, bin] = moves[event.key];
      cursor.row = clamp(cursor.row + row, 0, rows - 1);
      cursor.bin = clamp(cursor.bin + bin, 0, bins - 1);
      cursor.shown = true;
      const w = view.right - view.left, h = view.bottom - view.top;
      const left = cursor.bin < view.left || cursor.bin >= view.right ? cursor.bin - w / 2 : view.left;
      const top = clamp(view.top, cursor.row - h + 1, cursor.row);
      setView(left, left + w, top, top + h);
      speak();
    } else if (event.key === "+" || event.key === "=") zoom(0.6, cursor.shown ? cursor.bin : undefined);
    else if (event.key === "-") zoom(1 / 0.6, cursor.shown ? cursor.bin : undefined);
    else if (event.key === "0" || event.key === "Escape") reset();
    else if (event.key === "Home" || event.key === "End") {
      const w = view.right - view.left;
      event.key === "Home" ? setView(0, w, view.top, view.bottom) : setView(bins - w, bins, view.top, view.bottom);
    } else return;
    event.preventDefault();
    redraw();
  });
  canvas.addEventListener("blur", () => { cursor.shown = false; redraw(); });
}
function legends() {
  for (const panel of panels) {
    const colours = ramps[panel.key][dark.matches ? "dark" : "light"].join(",");
    document.getElementById("ramp-" + panel.key).style.background = `linear-gradient(90deg,${colours})`;
  }
}
const half = () => (view.right - view.left) / 2, halfRanks = () => Math.max(1, Math.floor((view.bottom - view.top) / 2));
const actions = {
  in: () => zoom(0.5), out: () => zoom(2), reset,
  left: () => setView(view.left - half(), view.right - half(), view.top, view.bottom),
  right: () => setView(view.left + half(), view.right + half(), view.top, view.bottom),
  fewer: () => zoomRanks(0.5), more: () => zoomRanks(2),
  up: () => setView(view.left, view.right, view.top - halfRanks(), view.bottom - halfRanks()),
  down: () => setView(view.left, view.right, view.top + halfRanks(), view.bottom + halfRanks()),
};
for (const [name, act] of Object.entries(actions)) button(name).addEventListener("click", act);
button("rank-tools").hidden = rows < 9;
addEventListener("pointerdown", (event) => { if (event.target.tagName !== "CANVAS") tip.style.display = "none"; });
addEventListener("scroll", () => { tip.style.display = "none"; }, { passive: true });
addEventListener("resize", redraw);
dark.addEventListener("change", () => { legends(); redraw(); });
legends();
redraw();
document.documentElement.dataset.ready = "yes";
