// Runs a model that tiny exported, on WebGPU. One file without dependencies.
//
//   import {load} from './model.js';
//   const m = await load('.');                 // the folder with plan.json
//   const {scores} = await m.run({images});    // typed arrays or arrays of numbers, by name
//
// m.inputs and m.outputs say names, dtypes and shapes. A length that varies is an input that is a
// number. Results are typed arrays with a property `shape`; halves (f16, bf16) come and go as
// Float32Array, i64 as BigInt64Array. What the model keeps from run to run (caches) stays on the
// device; m.reset() sets it back. load(url, {device}) takes a GPUDevice, {progress} a function of
// the share of the weights that have come.

const kArrays = {bool: Uint8Array, i8: Int8Array, u8: Uint8Array, i16: Int16Array, u16: Uint16Array,
                 i32: Int32Array, u32: Uint32Array, i64: BigInt64Array, f32: Float32Array,
                 f16: Float32Array, bf16: Float32Array};
const kHalves = {f16: [fromF16, toF16], bf16: [fromBf16, toBf16]};
const count = shape => shape.reduce((a, b) => a * b, 1);
const padded = bytes => Math.max(16, (bytes + 3) & ~3);

const words = new Uint32Array(1), floats = new Float32Array(words.buffer);
function fromBf16(bits) { words[0] = bits << 16; return floats[0]; }
function toBf16(x) {  // to the nearest, ties to even
  floats[0] = x;
  return x !== x ? 0x7fc0 : (words[0] + 0x7fff + ((words[0] >> 16) & 1)) >>> 16;
}
function fromF16(bits) {
  const sign = bits & 0x8000 ? -1 : 1, e = (bits >> 10) & 31, m = bits & 1023;
  if (e === 31) return m ? NaN : sign * Infinity;
  return sign * (e ? (1 + m / 1024) * 2 ** (e - 15) : m * 2 ** -24);
}
function toF16(x) {
  if (x !== x) return 0x7e00;
  const sign = x < 0 || Object.is(x, -0) ? 0x8000 : 0, a = Math.abs(x);
  if (a >= 65520) return sign | 0x7c00;
  const e = Math.max(-14, Math.floor(Math.log2(Math.max(a, 2 ** -24)))), unit = 2 ** (e - 10);
  const scaled = a / unit, low = Math.floor(scaled), rest = scaled - low;
  const m = low + (rest > 0.5 || (rest === 0.5 && low & 1) ? 1 : 0);
  return sign | (((e + 14) << 10) + m);  // a carry of m goes into the exponent
}

// A device with as much of each limit as there is, since weights may be larger than the least.
async function openDevice() {
  const adapter = await navigator.gpu?.requestAdapter({powerPreference: 'high-performance'});
  if (!adapter) throw new Error('this browser has no WebGPU');
  const requiredLimits = {};
  for (const name of ['maxBufferSize', 'maxStorageBufferBindingSize'])
    requiredLimits[name] = adapter.limits[name];
  const requiredFeatures = ['subgroups', 'shader-f16'].filter(f => adapter.features.has(f));
  return adapter.requestDevice({requiredLimits, requiredFeatures});
}

async function fetched(url) {
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url}: ${response.status} ${response.statusText}`);
  return response;
}

// Calls take(name, offset, bytes) with the data of a safetensors file as it comes.
async function readWeights(response, take, progress) {
  const total = +response.headers.get('content-length') || 0, reader = response.body.getReader();
  let head = new Uint8Array(), entries, at = 0, next = 0, done = 0;
  for (;;) {
    const {done: ended, value} = await reader.read();
    if (ended) break;
    done += value.length;
    if (progress && total) progress(done / total);
    let bytes = value;
    if (!entries) {
      const all = new Uint8Array(head.length + value.length);
      all.set(head);
      all.set(value, head.length);
      head = all;
      if (head.length < 8) continue;
      const length = Number(new DataView(head.buffer).getBigUint64(0, true));
      if (head.length < 8 + length) continue;
      const header = JSON.parse(new TextDecoder().decode(head.subarray(8, 8 + length)));
      delete header.__metadata__;
      entries = Object.entries(header).map(([name, e]) => ({name, begin: e.data_offsets[0], end: e.data_offsets[1]}));
      entries.sort((a, b) => a.begin - b.begin);
      bytes = head.subarray(8 + length);
    }
    while (bytes.length && next < entries.length) {
      const e = entries[next], here = bytes.subarray(0, e.end - at);
      take(e.name, at - e.begin, here);
      at += here.length;
      bytes = bytes.subarray(here.length);
      while (next < entries.length && at >= entries[next].end) ++next;
    }
  }
  if (!entries || next < entries.length) throw new Error('weights.safetensors: cut off');
}

// A kernel's text for a device: lines that end with //+name are for those that have a feature, with
// //-name for others.
function textFor(code, gpu) {
  const has = {f16: gpu.features.has('shader-f16'),
               subgroups: gpu.features.has('subgroups') && navigator.gpu.wgslLanguageFeatures.has('subgroup_id')};
  return code.replace(/^(.*)\/\/([+-])(\w+)\n/gm, (_, line, sign, name) => (sign === '+') === has[name] ? `${line}\n` : '');
}

// The buffers that a kernel's text declares: slot, access, type, bytes, whether it is written.
function bindingsOf(code) {
  const line = /@group\(0\)@binding\((\d+)\)var<(\w+).*>b\d+:(.*);\/\/ (\d+) bytes(, written)? *(?:\/\/.*)?\n/g;
  return [...code.matchAll(line)].map(([text, slot, access, type, bytes, written]) =>
    ({text, slot: +slot, access, type, bytes: +bytes, written: !!written}));
}

class Model {
  constructor(gpu, plan, url) {
    this.gpu = gpu;
    this.plan = plan;
    this.url = url;
    this.inputs = plan.inputs;
    this.outputs = plan.outputs;
    this.running = Promise.resolve();
  }

  async prepare(progress) {
    const {gpu, plan} = this;
    const largest = Math.max(0, ...plan.buffers.map(b => b.bytes)), most = gpu.limits.maxBufferSize;
    if (largest > most) throw new Error(`a buffer of ${largest} bytes, and the device has ${most} at most`);
    this.requireBindings();
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
    this.buffers = plan.buffers.map(b => gpu.createBuffer(
      {size: padded(b.bytes), usage, mappedAtCreation: b.kind === 'weight'}));
    await this.loadWeights(progress, i => new Uint8Array(this.buffers[i].getMappedRange()));
    plan.buffers.forEach((b, i) => { if (b.kind === 'weight') this.buffers[i].unmap(); });
    this.pipelines = new Map();
    const all = await Promise.all(plan.steps.map(step => this.prepareStep(step)));
    this.steps = all.filter((_, i) => !plan.steps[i].once);
    const encoder = gpu.createCommandEncoder();
    this.encode(encoder, all.filter((_, i) => plan.steps[i].once));
    gpu.queue.submit([encoder.finish()]);
    this.staging = plan.outputs.map(o => gpu.createBuffer(
      {size: padded(plan.buffers[o.buffer].bytes), usage: GPUBufferUsage.COPY_DST | GPUBufferUsage.MAP_READ}));
    return this;
  }

  // Before the weights come.
  requireBindings() {
    const most = this.gpu.limits.maxStorageBufferBindingSize;
    for (const {entry, code} of this.plan.kernels)
      for (const {bytes} of bindingsOf(code))
        if (bytes > most)
          throw new Error(`${entry} reads ${bytes} bytes of a buffer, and this device lets it see ${most}`);
  }

  async loadWeights(progress, memory) {
    const {plan} = this, places = new Map();
    plan.buffers.forEach((b, i) => { if (b.kind === 'weight') places.set(b.weight, memory(i)); });
    if (!places.size) return places;
    await readWeights(await fetched(`${this.url}/weights.safetensors`),
      (name, offset, bytes) => places.get(name)?.set(bytes, offset), progress);
    return places;
  }

  // Of a kernel whose arguments share memory: an argument that is only read, and is the same part of
  // a buffer as one that is written, is that one; others are copied before.
  async prepareStep({kernel, parts, bytes}) {
    const at = p => ({buffer: this.buffers[p[0]], offset: p[1]});
    if (kernel < 0) return {copies: [[at(parts[1]), at(parts[0]), bytes]]};
    const {groups} = this.plan.kernels[kernel];
    let code = textFor(this.plan.kernels[kernel].code, this.gpu);
    let bound = bindingsOf(code).map(b => ({...b, ...at(parts[b.slot]), label: `b${b.slot}`}));
    const copies = [];
    for (const b of bound) {
      if (b.written) continue;
      const meets = bound.filter(o => o.written && o.buffer === b.buffer &&
                                      o.offset < b.offset + b.bytes && b.offset < o.offset + o.bytes);
      const mixed = bound.some(o => o.buffer === b.buffer && o.access !== b.access);
      const same = meets.find(o => o.offset === b.offset && o.type === b.type);
      if (same && meets.length === 1) {
        code = code.replace(b.text, '').replace(new RegExp(`\\b${b.label}\\b`, 'g'), same.label);
        b.gone = true;
      } else if (meets.length || mixed || b.offset % 256) {
        const buffer = this.gpu.createBuffer({size: padded(b.bytes), usage: b.buffer.usage});
        copies.push([{buffer: b.buffer, offset: b.offset}, {buffer, offset: 0}, b.bytes]);
        b.buffer = buffer;
        b.offset = 0;
      }
    }
    bound = bound.filter(b => !b.gone);
    const entries = bound.map(b => ({binding: b.slot, resource: {buffer: b.buffer, offset: b.offset, size: b.bytes}}));
    const {pipeline, layout} = await this.pipelineOf(code, bound);
    return {copies, pipeline, groups, group: this.gpu.createBindGroup({layout, entries})};
  }

  pipelineOf(code, bound) {
    if (!this.pipelines.has(code)) {
      const layout = this.gpu.createBindGroupLayout({entries: bound.map(b =>
        ({binding: b.slot, visibility: GPUShaderStage.COMPUTE, buffer: {type: b.access}}))});
      const made = this.gpu.createComputePipelineAsync({
        layout: this.gpu.createPipelineLayout({bindGroupLayouts: [layout]}),
        compute: {module: this.gpu.createShaderModule({code}), entryPoint: 'main'}});
      this.pipelines.set(code, made.then(pipeline => ({pipeline, layout})));
    }
    return this.pipelines.get(code);
  }

  // The bytes of an input of a dtype, from a typed array, an array of numbers or a number.
  bytesOf(port, value) {
    const size = count(port.shape);
    if (value === undefined) throw new Error(`the input ${port.name} is missing`);
    if (port.bounds && !(port.bounds[0] <= value && value <= port.bounds[1]))
      throw new Error(`the input ${port.name} lies in [${port.bounds}], given ${value}`);
    const given = typeof value === 'number' || typeof value === 'bigint' ? [value] : value;
    if (given.length !== size)
      throw new Error(`the input ${port.name} has ${size} elements (${port.shape}), given ${given.length}`);
    if (kHalves[port.dtype]) return Uint16Array.from(given, kHalves[port.dtype][1]);
    const Type = kArrays[port.dtype];
    if (!Type) throw new Error(`the input ${port.name} is ${port.dtype}, which no array holds`);
    if (given instanceof Type) return given;
    return port.dtype === 'i64' ? Type.from(given, BigInt) : Type.from(given);
  }

  write(buffer, data) {
    let bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
    if (bytes.length % 4) {
      const whole = new Uint8Array((bytes.length + 3) & ~3);
      whole.set(bytes);
      bytes = whole;
    }
    this.gpu.queue.writeBuffer(buffer, 0, bytes);
  }

  // Runs come one after the other, however they are called.
  run(inputs = {}, {outputs = this.outputs.map(o => o.name)} = {}) {
    const next = this.running.then(() => this.runNow(inputs, outputs));
    this.running = next.catch(() => {});
    return next;
  }

  async runNow(inputs, wanted) {
    const {gpu, plan} = this;
    const data = plan.inputs.map(p => this.bytesOf(p, inputs[p.name]));
    plan.buffers.forEach((b, i) => { if (b.kind === 'input') this.write(this.buffers[i], data[b.port]); });
    gpu.pushErrorScope('validation');
    const encoder = gpu.createCommandEncoder();
    this.encode(encoder, this.steps);
    const read = plan.outputs.map((o, i) => ({...o, staging: this.staging[i]})).filter(o => wanted.includes(o.name));
    for (const o of read)
      encoder.copyBufferToBuffer(this.buffers[o.buffer], 0, o.staging, 0, (plan.buffers[o.buffer].bytes + 3) & ~3);
    gpu.queue.submit([encoder.finish()]);
    const error = gpu.popErrorScope().then(e => { if (e) this.failed ??= e; });
    if (!read.length) return {};  // it goes on by itself; a later run tells what went wrong
    await error;
    if (this.failed) throw new Error(this.failed.message);
    await Promise.all(read.map(o => o.staging.mapAsync(GPUMapMode.READ)));
    const out = {};
    for (const o of read) {
      out[o.name] = this.result(o, o.staging.getMappedRange().slice(0), inputs);
      o.staging.unmap();
    }
    return out;
  }

  encode(encoder, steps) {
    let pass;
    for (const step of steps) {
      if (step.copies.length && pass) { pass.end(); pass = undefined; }
      for (const [from, to, bytes] of step.copies)
        encoder.copyBufferToBuffer(from.buffer, from.offset, to.buffer, to.offset, (bytes + 3) & ~3);
      if (!step.pipeline) continue;
      pass ??= encoder.beginComputePass();
      pass.setPipeline(step.pipeline);
      pass.setBindGroup(0, step.group);
      pass.dispatchWorkgroups(...step.groups);
    }
    if (pass) pass.end();
  }

  result(output, data, inputs) {
    const half = kHalves[output.dtype], Type = kArrays[output.dtype] ?? Uint8Array;
    let out = half ? Float32Array.from(new Uint16Array(data), half[0]) : new Type(data);
    const shape = [...output.shape];
    out = out.subarray(0, count(shape));
    for (const {axis, length} of output.lengths ?? []) {
      const inner = count(shape.slice(axis + 1)), n = this.lengthOf(length, inputs);
      const outer = count(shape.slice(0, axis)), part = new out.constructor(outer * n * inner);
      for (let i = 0; i < outer; ++i)
        part.set(out.subarray(i * shape[axis] * inner, (i * shape[axis] + n) * inner), i * n * inner);
      shape[axis] = n;
      out = part;
    }
    out.shape = shape;
    return out;
  }

  lengthOf(length, inputs) {
    if (typeof length === 'number') return length;
    if ('input' in length) return Number(inputs[this.inputs[length.input].name]);
    const [a, b] = length.of.map(l => this.lengthOf(l, inputs));
    return {Add: a + b, Sub: a - b, Mul: a * b, Max: Math.max(a, b), Min: Math.min(a, b)}[length.op];
  }

  // The state of the model as it was exported.
  async reset() {
    await this.running;
    const sizes = this.plan.buffers.map(b => new Uint8Array(padded(b.bytes)));
    await this.loadWeights(undefined, i => sizes[i]);
    this.plan.buffers.forEach((b, i) => {
      if (b.kind === 'weight' || b.kind === 'zero') this.write(this.buffers[i], sizes[i]);
    });
  }

  close() {
    for (const b of [...this.buffers, ...this.staging]) b.destroy();
  }
}

export async function load(url = '.', {device, progress} = {}) {
  const folder = String(url).replace(/\/(plan\.json)?$/, '');
  const plan = await (await fetched(`${folder}/plan.json`)).json();
  if (plan.format !== 'tiny program 1' || plan.language !== 'wgsl')
    throw new Error(`${folder}/plan.json: no program for WebGPU`);
  return new Model(device ?? await openDevice(), plan, folder).prepare(progress);
}
