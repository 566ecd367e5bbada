// Times the launches of an exported model in a browser, each in a pass of its own.
//   node extra/webgpu/profile.mjs FOLDER [RUNS]
// Prints the median of each launch by the device's timestamps, and of whole runs, in milliseconds.
import {openPage} from './browser.mjs';

const [folder, runs = '5'] = process.argv.slice(2);
const page = await openPage(folder);
try {
  const {rows, whole} = await page.evaluate(`(async () => {
    const {load} = await module('/model.js');
    const adapter = await navigator.gpu.requestAdapter();
    if (!adapter.features.has('timestamp-query')) throw new Error('this device has no timestamps');
    const device = await adapter.requestDevice({requiredFeatures: ['timestamp-query', 'subgroups', 'shader-f16'].filter(f => adapter.features.has(f)),
      requiredLimits: {maxBufferSize: adapter.limits.maxBufferSize, maxStorageBufferBindingSize: adapter.limits.maxStorageBufferBindingSize}});
    const m = await load('.', {device}), inputs = {}, median = all => all.sort((a, b) => a - b)[all.length >> 1];
    for (const p of m.inputs) {
      const n = p.shape.reduce((a, b) => a * b, 1);
      inputs[p.name] = p.bounds ? p.bounds[1] : Array.from({length: n}, (_, i) => /^b?f/.test(p.dtype) ? Math.sin(i * 0.37) : 0);
    }
    const wall = [];
    for (let i = 0; i < ${+runs}; ++i) {
      const begin = performance.now();
      await m.run(inputs);
      wall.push(performance.now() - begin);
    }
    const steps = m.steps, n = steps.length;
    const set = device.createQuerySet({type: 'timestamp', count: 2 * n});
    const resolved = device.createBuffer({size: 16 * n, usage: GPUBufferUsage.QUERY_RESOLVE | GPUBufferUsage.COPY_SRC});
    const host = device.createBuffer({size: 16 * n, usage: GPUBufferUsage.COPY_DST | GPUBufferUsage.MAP_READ});
    const times = steps.map(() => []);
    for (let run = 0; run < ${+runs}; ++run) {
      const encoder = device.createCommandEncoder();
      steps.forEach((step, i) => {
        for (const [from, to, bytes] of step.copies)
          encoder.copyBufferToBuffer(from.buffer, from.offset, to.buffer, to.offset, (bytes + 3) & ~3);
        const pass = encoder.beginComputePass({timestampWrites: {querySet: set, beginningOfPassWriteIndex: 2 * i, endOfPassWriteIndex: 2 * i + 1}});
        if (step.pipeline) {
          pass.setPipeline(step.pipeline);
          pass.setBindGroup(0, step.group);
          pass.dispatchWorkgroups(...step.groups);
        }
        pass.end();
      });
      encoder.resolveQuerySet(set, 0, 2 * n, resolved, 0);
      encoder.copyBufferToBuffer(resolved, 0, host, 0, 16 * n);
      device.queue.submit([encoder.finish()]);
      await host.mapAsync(GPUMapMode.READ);
      const t = new BigUint64Array(host.getMappedRange().slice(0));
      host.unmap();
      steps.forEach((_, i) => times[i].push(Number(t[2 * i + 1] - t[2 * i]) / 1e6));
    }
    const plan = m.plan.steps.filter(s => !s.once);
    const rows = plan.map((s, i) => {
      const k = m.plan.kernels[s.kernel];
      return [median(times[i]), s.kernel, k?.entry ?? 'copy', (k?.groups ?? []).join(' x '), /workgroup_size\\(([^)]*)/.exec(k?.code)?.[1] ?? ''];
    });
    return {rows, whole: median(wall)};
  })()`);
  let sum = 0;
  for (const [ms, kernel, name, groups, size] of rows) {
    sum += ms;
    console.log(`${ms.toFixed(3).padStart(9)} ms  kernel ${kernel}, ${groups} groups of ${size}: ${name}`);
  }
  console.log(`${sum.toFixed(3).padStart(9)} ms  in all; a run takes ${whole.toFixed(3)} ms`);
} finally { page.close(); }
