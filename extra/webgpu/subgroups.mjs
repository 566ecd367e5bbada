// Runs an exported model with subgroups and without, in turn, and compares both.
//   node extra/webgpu/subgroups.mjs FOLDER [RUNS] [TOLERANCE]
// Prints the median times of both in milliseconds, and how far results lie apart, as a share of the
// largest value; fails beyond TOLERANCE (1e-5). Where the browser has no subgroups it says so.
import {openPage} from './browser.mjs';

const [folder, runs = '5', tolerance = '1e-5'] = process.argv.slice(2);
const page = await openPage(folder);
try {
  const {missing, times, apart, barriers} = await page.evaluate(`(async () => {
    const {load} = await module('/model.js');
    const adapter = () => navigator.gpu.requestAdapter();
    const {features, limits} = await adapter();
    if (!features.has('subgroups') || !navigator.gpu.wgslLanguageFeatures.has('subgroup_id')) return {missing: true};
    const requiredLimits = {maxBufferSize: limits.maxBufferSize, maxStorageBufferBindingSize: limits.maxStorageBufferBindingSize};
    const models = [];
    for (const requiredFeatures of [['subgroups'], []])
      models.push(await load('.', {device: await (await adapter()).requestDevice({requiredLimits, requiredFeatures})}));
    const inputs = {}, times = [[], []], median = all => all.sort((a, b) => a - b)[all.length >> 1];
    for (const p of models[0].inputs) {
      const n = p.shape.reduce((a, b) => a * b, 1);
      inputs[p.name] = p.bounds ? p.bounds[1] : Array.from({length: n}, (_, i) => /^b?f/.test(p.dtype) ? Math.sin(i * 0.37) : 0);
    }
    let apart = 0;
    for (let run = 0; run <= ${+runs}; ++run) {
      const results = [];
      for (const i of run % 2 ? [0, 1] : [1, 0]) {
        const begin = performance.now();
        results[i] = await models[i].run(inputs);
        if (run) times[i].push(performance.now() - begin);
      }
      for (const {name} of models[0].outputs) {
        const [a, b] = results.map(r => r[name]), largest = b.reduce((m, x) => Math.max(m, Math.abs(Number(x))), 1e-30);
        a.forEach((x, i) => { const d = Math.abs(Number(x) - Number(b[i])) / largest; if (!(d <= apart)) apart = d; });
      }
    }
    return {times: times.map(median), apart, barriers: models[0].plan.kernels.filter(k => k.code.includes('//+subgroups')).length};
  })()`);
  if (missing) console.log('this browser has no subgroups');
  else {
    console.log(`${barriers} kernels exchange by subgroups: ${times[0].toFixed(3)} ms with them, ${times[1].toFixed(3)} ms without; results are ${apart.toExponential(1)} apart`);
    if (!(apart <= +tolerance)) process.exitCode = 1;
  }
} finally { page.close(); }
