// Compiles kernels of WebGPU for devices with each set of the features that their lines name, on
// Dawn's backend that runs nothing and has all features. DAWN is the folder of npm's package webgpu.
//   DAWN=folder node validate.mjs FILE
// FILE is a JSON list of texts. Prints what is wrong with each, and how many were compiled.
import {readFileSync} from 'node:fs';
import {resolve} from 'node:path';
import {pathToFileURL} from 'node:url';

const {create, globals} = await import(pathToFileURL(resolve(process.env.DAWN, 'index.js')));
Object.assign(globalThis, globals);
const gpu = create(['backend=null']);
let compiled = 0;
for (const requiredFeatures of [[], ['shader-f16'], ['subgroups'], ['shader-f16', 'subgroups']]) {
  const device = await (await gpu.requestAdapter()).requestDevice({requiredFeatures});
  const has = {f16: device.features.has('shader-f16'), subgroups: device.features.has('subgroups')};
  for (const text of JSON.parse(readFileSync(process.argv[2], 'utf8'))) {
    const code = text.replace(/^(.*)\/\/([+-])(\w+)\n/gm, (_, line, sign, name) => (sign === '+') === has[name] ? `${line}\n` : '\n');
    device.pushErrorScope('validation');
    const module = device.createShaderModule({code});
    device.createComputePipeline({layout: 'auto', compute: {module, entryPoint: 'main'}});
    const error = await device.popErrorScope();
    if (error) {
      console.log(`${requiredFeatures}: ${error.message}\n${code}`);
      process.exit(1);
    }
    ++compiled;
  }
}
console.log(`${compiled} compiled`);
process.exit(0);
