"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const UNKNOWN = 255, TOP = 250;
const ramps = {
  compute_utilisation: { light: ["#f0f7f3", "#bfe3d0", "#6fbf9e", "#2a8a6b", "#0b5d48"], dark: ["#16221f", "#135044", "#1d8a71", "#46b592", "#9ff0d2"] },
  memory_bandwidth_utilisation: { light: ["#f3f1fb", "#d0c8ef", "#9f8bdb", "#6f51ba", "#43278a"], dark: ["#1b1928", "#41308a", "#6f54c4", "#9d87e6", "#d5c9ff"] },
  communication_wait: { light: ["#fef5ea", "#fdd5a1", "#f6a04f", "#dd6a17", "#9a3306"], dark: ["#261c15", "#7a3410", "#c05a17", "#ee8f42", "#ffd09a"] },
};
const dark = matchMedia("(prefers-color-scheme: dark)");
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
const rows = data.ranks.length, bins = data.bins;
const view = { left: 0, right: bins, top: 0, bottom: rows };
const cursor = { row: 0, bin: Math.floor(bins / 2), shown: false };
const tip = document.getElementById("tip"), live = document.getElementById("live");
const where = document.getElementById("where");
const AXIS = 22, STEPS = 18;

const panels = data.metrics.map((metric) => {
  const canvas = document.getElementById("plot-" + metric.key);
  const values = bytes(metric.values);
  return { ...metric, canvas, values, blank: values.every((value) => value === UNKNOWN) };
});

const mix = (a, b, t) => Math.round(a + (b - a) * t);
function palette(key) {
  const stops = ramps[key][dark.matches ? "dark" : "light"].map((hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)));
  const table = new Uint32Array(TOP + 1);
  for (let level = 0; level <= TOP; level++) {
    const at = (level / TOP) * (stops.length - 1), low = Math.min(stops.length - 2, Math.floor(at));
    const [r, g, b] = [0, 1, 2].map((i) => mix(stops[low][i], stops[low + 1][i], at - low));
    table[level] = (255 << 24) | (b << 16) | (g << 8) | r;
  }
  return table;
}
const time = (bin) => data.start_ns + ((data.end_ns - data.start_ns) * bin) / bins;
function duration(ns, span) {
  const [unit, per] = span >= 2e9 ? ["s", 1e9] : span >= 2e6 ? ["ms", 1e6] : span >= 2e3 ? ["µs", 1e3] : ["ns", 1];
  const digits = Math.max(0, Math.min(6, 2 - Math.floor(Math.log10(Math.max(span / per, 1e-9)))));
  return Number((ns / per).toFixed(per === 1 ? 0 : digits)) + " " + unit;
}
const since = (bin) => time(bin) - data.start_ns;
const span = () => since(view.right) - since(view.left);

function plotArea(panel) {
  const width = panel.canvas.clientWidth, label = rows > 1 || width > 500 ? Math.min(64, width * 0.16) : 44;
  return { x: label, y: STEPS, w: width - label - 1, h: panel.canvas.clientHeight - AXIS - STEPS };
}
function rowHeight(panel) {
  if (panel.blank) return 30;
  const narrow = innerWidth < 700;
  const each = rows <= 4 ? 34 : rows <= 8 ? 24 : rows <= 16 ? 16 : rows <= 32 ? 11 : rows <= 80 ? 6 : 1;
  const most = narrow ? 300 : 512;
  return Math.max(36, Math.min(most, rows * (narrow ? Math.min(each, 22) : each)));
}

// One pixel of the picture: the mean of its known cells; unknown where most of them are.
function pixels(panel, w, h) {
  const picture = new ImageData(w, h), out = new Uint32Array(picture.data.buffer);
  const table = palette(panel.key), { values } = panel;
  const xs = new Int32Array(w + 1), ys = new Int32Array(h + 1);
  for (let x = 0; x <= w; x++) xs[x] = Math.floor(view.left + ((view.right - view.left) * x) / w);
  for (let y = 0; y <= h; y++) ys[y] = Math.floor(view.top + ((view.bottom - view.top) * y) / h);
  for (let y = 0; y < h; y++) {
    const r0 = ys[y], r1 = Math.max(r0 + 1, ys[y + 1]);
    if (y && ys[y] === ys[y - 1] && r1 === Math.max(ys[y - 1] + 1, ys[y])) {
      out.copyWithin(y * w, (y - 1) * w, y * w);
      continue;
    }
    for (let x = 0; x < w; x++) {
      const b0 = xs[x], b1 = Math.max(b0 + 1, xs[x + 1]);
      let sum = 0, known = 0, all = 0;
      for (let r = r0; r < r1 && r < rows; r++)
        for (let b = b0; b < b1 && b < bins; b++) {
          const value = values[r * bins + b];
          all++;
          if (value !== UNKNOWN) { sum += value; known++; }
        }
      out[y * w + x] = known && known * 2 >= all ? table[Math.round(sum / known)] : 0;
    }
  }
  return picture;
}
function hatch(context, scale) {
  const tile = document.createElement("canvas"), size = Math.round(7 * scale);
  tile.width = tile.height = size;
  const draw = tile.getContext("2d");
  draw.fillStyle = style("--hatch-bg"); draw.fillRect(0, 0, size, size);
  draw.strokeStyle = style("--hatch"); draw.lineWidth = 1.3 * scale;
  draw.beginPath();
  for (const shift of [-size, 0, size]) { draw.moveTo(shift, size); draw.lineTo(shift + size, 0); }
  draw.stroke();
  return context.createPattern(tile, "repeat");
}
function ticks(low, high, count) {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high; at += step) found.push(at);
  return found;
}

function draw(panel) {
  const { canvas } = panel, scale = window.devicePixelRatio || 1;
  canvas.style.height = rowHeight(panel) + AXIS + STEPS + "px";
  const area = plotArea(panel);
  canvas.width = Math.round(canvas.clientWidth * scale);
  canvas.height = Math.round(canvas.clientHeight * scale);
  const context = canvas.getContext("2d");
  const w = Math.max(1, Math.round(area.w * scale)), h = Math.max(1, Math.round(area.h * scale));
  context.fillStyle = hatch(context, scale);
  context.fillRect(area.x * scale, area.y * scale, w, h);
  const layer = document.createElement("canvas");
  layer.width = w; layer.height = h;
  layer.getContext("2d").putImageData(pixels(panel, w, h), 0, 0);
  context.drawImage(layer, area.x * scale, area.y * scale);
  context.setTransform(scale, 0, 0, scale, 0, 0);
  panel.area = area;
  drawFrame(context, panel, canvas.clientWidth);
}
function drawFrame(context, panel, width) {
  const { area } = panel;
  const ink = style("--ink"), soft = style("--soft"), line = style("--line");
  context.font = "11px system-ui, sans-serif";
  const x = (bin) => area.x + ((bin - view.left) / (view.right - view.left)) * area.w;
  const toBin = (ns) => (ns / (data.end_ns - data.start_ns)) * bins;
  context.save();
  context.beginPath(); context.rect(area.x, 0, area.w, area.y + area.h); context.clip();
  context.textBaseline = "middle"; context.textAlign = "left";
  let free = area.x - 40, named = false;
  for (const [number, start, end] of data.steps) {
    const left = x(toBin(start - data.start_ns)), right = x(toBin(end - data.start_ns));
    if (right < area.x || left > area.x + area.w) continue;
    context.strokeStyle = style("--mark"); context.globalAlpha = 0.45; context.lineWidth = 1;
    if (right - left > 3) {
      context.beginPath();
      for (const at of [left, right]) { context.moveTo(Math.round(at) + 0.5, STEPS - 4); context.lineTo(Math.round(at) + 0.5, area.y + area.h); }
      context.stroke();
    }
    context.globalAlpha = 1;
    const text = (area.w < 500 && named ? "" : "step ") + number, at = Math.max(left, area.x) + 3;
    if (at >= free && right - left > 3) {
      context.fillStyle = soft; context.fillText(text, at, STEPS / 2);
      free = at + context.measureText(text).width + 8;
      named = true;
    }
  }
  context.restore();
  context.strokeStyle = line; context.lineWidth = 1;
  context.strokeRect(area.x - 0.5, area.y - 0.5, area.w + 1, area.h + 1);
  context.fillStyle = soft; context.textBaseline = "top"; context.textAlign = "center";
  for (const at of ticks(since(view.left), since(view.right), Math.max(2, area.w / 130))) {
    const left = x(toBin(at));
    context.fillRect(Math.round(left), area.y + area.h, 1, 4);
    const text = duration(at, span()), half = context.measureText(text).width / 2;
    context.fillText(text, Math.min(width - half - 1, Math.max(half, left)), area.y + area.h + 7);
  }
  context.textAlign = "left"; context.textBaseline = "middle";
  context.fillText("rank", 0, STEPS / 2);
  context.textAlign = "right"; context.fillStyle = ink;
  const each = area.h / (view.bottom - view.top);
  if (panel.blank) {
    const text = data.ranks[view.top] + (view.bottom - view.top > 1 ? " … " + data.ranks[view.bottom - 1] : "");
    context.fillText(text, area.x - 6, area.y + area.h / 2);
    return;
  }
  const every = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].find((n) => n * each >= 13) || 2000;
  for (let row = Math.ceil(view.top / every) * every; row < view.bottom; row += every)
    context.fillText(data.ranks[row], area.x - 6, area.y + (row + 0.5 - view.top) * each);
  if (cursor.shown && cursor.bin >= view.left && cursor.bin < view.right && cursor.row >= view.top && cursor.row < view.bottom) {
    context.strokeStyle = style("--cursor"); context.lineWidth = 2;
    const cx = x(cursor.bin), cw = Math.max(3, x(cursor.bin + 1) - cx);
    context.strokeRect(cx - 1, area.y + (cursor.row - view.top) * each - 1, cw + 2, Math.max(3, each) + 2);
  }
}
