// The page of `mnist --page`: a digit is drawn with the mouse and read by the network in the browser.
#pragma once

inline constexpr char kMnistPage[] = R"PAGE(<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Digits</title>
<style>
  body { font: 16px/1.5 system-ui, sans-serif; max-width: 44rem; margin: 2rem auto; padding: 0 1rem; }
  main { display: flex; gap: 2rem; }
  canvas { background: #000; touch-action: none; cursor: crosshair; }
  #answer { font-size: 4rem; line-height: 1; min-height: 4rem; margin: 0; }
  .bar { display: flex; gap: .5rem; align-items: center; line-height: 1.2; }
  .bar div { background: #36c; height: .8rem; }
</style>
<h1>Draw a digit</h1>
<main>
  <div><canvas id="pad" width="280" height="280"></canvas><p><button id="clear">Clear</button></p></div>
  <div><p id="answer"></p><div id="bars"></div><p id="state">loading</p></div>
</main>
<script type="module">
import {load} from './model.js';
const $ = id => document.getElementById(id), pad = $('pad'), pen = pad.getContext('2d', {willReadFrequently: true});
const small = new OffscreenCanvas(28, 28).getContext('2d', {willReadFrequently: true});
let model, last;

function clear() {
  pen.fillStyle = '#000';
  pen.fillRect(0, 0, 280, 280);
  $('answer').textContent = $('bars').textContent = '';
}

// 28 x 28 pixels as MNIST has them: the digit in a box of 20 x 20, its centre of mass in the middle.
function image() {
  const {data} = pen.getImageData(0, 0, 280, 280);
  let x0 = 280, x1 = 0, y0 = 280, y1 = 0, mass = 0, mx = 0, my = 0;
  for (let y = 0; y < 280; ++y)
    for (let x = 0; x < 280; ++x) {
      const v = data[4 * (280 * y + x)];
      if (!v) continue;
      x0 = Math.min(x0, x); x1 = Math.max(x1, x + 1); y0 = Math.min(y0, y); y1 = Math.max(y1, y + 1);
      mass += v; mx += v * (x + .5); my += v * (y + .5);
    }
  if (!mass) return;
  const scale = 20 / Math.max(x1 - x0, y1 - y0);
  small.fillStyle = '#000';
  small.fillRect(0, 0, 28, 28);
  small.imageSmoothingQuality = 'high';
  small.drawImage(pad, 14 - mx / mass * scale, 14 - my / mass * scale, 280 * scale, 280 * scale);
  const pixels = small.getImageData(0, 0, 28, 28).data;
  return Float32Array.from({length: 784}, (_, i) => pixels[4 * i] / 255);
}

async function read() {
  const x = image();
  if (!x || !model) return;
  const begin = performance.now(), {digits} = await model.run({image: x});
  $('answer').textContent = digits.indexOf(Math.max(...digits));
  $('bars').innerHTML = [...digits].map((p, i) => `<span class="bar">${i}<div style="width:${200 * p}px"></div></span>`).join('');
  $('state').textContent = `${(performance.now() - begin).toFixed(1)} ms`;
}

pad.onpointerdown = e => { last = [e.offsetX, e.offsetY]; };
pad.onpointermove = e => {
  if (!last || !e.buttons) return;
  pen.strokeStyle = '#fff';
  pen.lineWidth = 22;
  pen.lineCap = pen.lineJoin = 'round';
  pen.beginPath();
  pen.moveTo(...last);
  pen.lineTo(...last = [e.offsetX, e.offsetY]);
  pen.stroke();
};
pad.onpointerup = () => { last = undefined; read(); };
$('clear').onclick = clear;
clear();
try { model = await load('.'); $('state').textContent = 'ready'; }
catch (e) { $('state').textContent = e.message; }
</script>
</html>
)PAGE";
