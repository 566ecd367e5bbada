// Times an exported model beside onnxruntime-web in one browser, on the same inputs, and compares
// what they give.
//   npm install onnxruntime-web          (in a folder of your choice)
//   node extra/webgpu/compare.mjs EXPORT MODEL.onnx FOLDER/node_modules/onnxruntime-web/dist [RUNS]
// EXPORT and MODEL.onnx come from export_webgpu and onnx::export_onnx of one Jit, with the same
// names. Prints medians in milliseconds.
import {basename, dirname, resolve} from 'node:path';
import {openPage} from './browser.mjs';

const [folder, onnx, dist, runs = '20'] = process.argv.slice(2);
const page = await openPage({'/': resolve(folder), '/ort/': resolve(dist), '/onnx/': dirname(resolve(onnx))});
try {
  const rows = await page.evaluate(`(async () => {
    const {load} = await module('/model.js');
    const time = async run => {
      const times = [];
      let out;
      for (let i = 0; i < ${+runs} + 3; ++i) {
        const begin = performance.now();
        out = await run();
        if (i >= 3) times.push(performance.now() - begin);
      }
      times.sort((a, b) => a - b);
      return {ms: times[times.length >> 1], out};
    };
    const rows = [];
    let begin = performance.now();
    const m = await load('.'), inputs = {}, names = {};
    const opened = performance.now() - begin;
    for (const p of m.inputs) {
      const n = p.shape.reduce((a, b) => a * b, 1);
      inputs[p.name] = p.dtype === 'f32' ? Float32Array.from({length: n}, (_, i) => Math.sin(i * 0.37)) : new Int32Array(n);
    }
    const own = await time(() => m.run(inputs)), name = m.outputs[0].name, expected = own.out[name];
    rows.push(['tiny, WebGPU', own.ms, 0, opened]);
    for (const provider of ['wasm', 'webgpu']) {
      try {
        const ort = await module(provider === 'wasm' ? '/ort/ort.wasm.min.mjs' : '/ort/ort.webgpu.min.mjs');
        ort.env.wasm.wasmPaths = fileOf('/ort/');
        begin = performance.now();
        const session = await ort.InferenceSession.create('/onnx/${basename(onnx)}', {executionProviders: [provider]});
        const feeds = {};
        for (const p of m.inputs) feeds[p.name] = new ort.Tensor(p.dtype === 'f32' ? 'float32' : 'int32', inputs[p.name], p.shape);
        const opened = performance.now() - begin;
        const {ms, out} = await time(() => session.run(feeds));
        const worst = Math.max(...Array.from(out[name].data, (v, i) => Math.abs(v - expected[i])));
        rows.push(['onnxruntime-web, ' + provider + ', ' + (provider === 'wasm' ? ort.env.wasm.numThreads + ' threads' : ''), ms, worst, opened]);
      } catch (e) { rows.push(['onnxruntime-web, ' + provider + ': ' + e.message.slice(0, 300)]); }
    }
    return rows;
  })()`);
  for (const [name, ms, worst, opened] of rows)
    console.log(ms === undefined ? name : `${name}: ${ms.toFixed(2)} ms, differs by ${worst.toExponential(1)}, opened in ${opened.toFixed(0)} ms`);
} finally { page.close(); }
