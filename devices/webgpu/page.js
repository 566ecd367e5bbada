// The page behind the device WEBGPU: reads commands from its server as one endless answer, runs
// them in order, and posts what they give. runner.mjs has the server, webgpu.cpp the other end.
//
// A command is u32 words: bytes of the whole, operation, operands; then its data. An answer is a
// u32, 0 or 1 for an error, and its data.
const kBlock = 64;  // launches in a command buffer
let gpu, limits, encoder, pass, launches = 0;
const buffers = new Map(), programs = new Map();
let extra = [];  // copies of operands for the launches under way

function fail(why) { throw new Error(why); }

async function open() {
  if (!navigator.gpu) fail('the browser has no WebGPU');
  const adapter = await navigator.gpu.requestAdapter();
  if (!adapter) fail('the browser finds no adapter for WebGPU');
  limits = {};
  for (const name of ['maxBufferSize', 'maxStorageBufferBindingSize', 'maxStorageBuffersPerShaderStage',
                      'maxComputeWorkgroupStorageSize'])
    limits[name] = adapter.limits[name];
  const requiredFeatures = ['subgroups', 'shader-f16'].filter(f => adapter.features.has(f));
  gpu = await adapter.requestDevice({requiredLimits: limits, requiredFeatures});
  gpu.pushErrorScope('validation');
  gpu.pushErrorScope('out-of-memory');
  const {vendor, architecture, description} = adapter.info;
  return [vendor, architecture, description].filter(x => x).join(' ');
}

function flush() {
  if (!encoder) return;
  if (pass) pass.end();
  gpu.queue.submit([encoder.finish()]);
  encoder = pass = undefined;
  launches = 0;
  for (const b of extra) b.destroy();
  extra = [];
}

function commands() { return encoder ??= gpu.createCommandEncoder(); }
function endPass() { if (pass) pass.end(); pass = undefined; }

const kUsage = GPUBufferUsage.STORAGE | GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
const padded = bytes => Math.max(16, (bytes + 3) & ~3);

// Lines that end with //+name are for devices that have a feature, with //-name for others.
function textFor(text) {
  const has = {f16: gpu.features.has('shader-f16'),
               subgroups: gpu.features.has('subgroups') && navigator.gpu.wgslLanguageFeatures.has('subgroup_id')};
  return text.replace(/^(.*)\/\/([+-])(\w+)\n/gm, (_, line, sign, name) => (sign === '+') === has[name] ? `${line}\n` : '');
}

function load(id, given) {
  const text = textFor(given);
  const module = gpu.createShaderModule({code: text});
  const entries = [], written = [], sizes = [];
  for (const [, slot, access, bytes, writes] of text.matchAll(/@binding\((\d+)\) ?var<(\w+).*\/\/ (\d+) bytes(, written)?/g)) {
    entries.push({binding: +slot, visibility: GPUShaderStage.COMPUTE, buffer: {type: access}});
    written.push(!!writes);
    sizes.push(+bytes);
  }
  const layout = gpu.createBindGroupLayout({entries});
  const pipeline = gpu.createComputePipeline({
    layout: gpu.createPipelineLayout({bindGroupLayouts: [layout]}), compute: {module, entryPoint: 'main'}});
  programs.set(id, {pipeline, layout, entries, written, sizes});
}

// A part of one buffer cannot be written while it is bound a second time, nor a buffer be a uniform
// and storage at once: such operands are copied.
function apart(at, part, parts, program) {
  const uniform = program.entries[at].buffer.type === 'uniform';
  const collides = parts.some((other, i) => i !== at && other.buffer === part.buffer &&
      (uniform !== (program.entries[i].buffer.type === 'uniform') ||
       ((program.written[i] || program.written[at]) && other.offset < part.offset + part.size &&
        part.offset < other.offset + other.size)));
  if ((!collides && part.offset % 256 === 0) || program.written[at]) return part;
  const copy = gpu.createBuffer({size: part.size, usage: kUsage});
  endPass();
  commands().copyBufferToBuffer(part.buffer, part.offset, copy, 0, part.size);
  extra.push(copy);
  return {buffer: copy, offset: 0, size: part.size};
}

function launch(words) {
  const program = programs.get(words[0]), at = new Map();
  for (let i = 4; i < words.length; i += 3) at.set(words[i], words.subarray(i + 1, i + 3));
  const parts = program.entries.map((e, i) => {
    const [id, offset] = at.get(e.binding);
    const size = program.sizes[i], most = limits.maxStorageBufferBindingSize;
    if (size > most) fail(`a kernel reads ${size} bytes of a buffer, and this device lets it see ${most}`);
    return {buffer: buffers.get(id), offset, size};
  });
  const entries = program.entries.map((e, i) => ({binding: e.binding, resource: apart(i, parts[i], parts, program)}));
  pass ??= commands().beginComputePass();
  pass.setPipeline(program.pipeline);
  pass.setBindGroup(0, gpu.createBindGroup({layout: program.layout, entries}));
  pass.dispatchWorkgroups(words[1], words[2], words[3]);
  if (++launches >= kBlock) flush();
}

async function read(id, offset, bytes) {
  const size = (bytes + 3) & ~3;
  const to = gpu.createBuffer({size: Math.max(size, 4), usage: GPUBufferUsage.COPY_DST | GPUBufferUsage.MAP_READ});
  endPass();
  commands().copyBufferToBuffer(buffers.get(id), offset, to, 0, size);
  await finish();
  await to.mapAsync(GPUMapMode.READ);
  const out = new Uint8Array(to.getMappedRange().slice(0, bytes));
  to.destroy();
  return out;
}

// All that was asked for has been done; throws what went wrong since the last time.
async function finish() {
  flush();
  const memory = gpu.popErrorScope(), validation = gpu.popErrorScope();
  gpu.pushErrorScope('validation');
  gpu.pushErrorScope('out-of-memory');
  await gpu.queue.onSubmittedWorkDone();
  const error = await validation ?? await memory;
  if (error) fail(error.message);
}

const operations = [
  function alloc(words) {
    const size = padded(words[1]);
    if (size > limits.maxBufferSize) fail(`out of memory: ${size} bytes, of ${limits.maxBufferSize} at most`);
    buffers.set(words[0], gpu.createBuffer({size, usage: kUsage}));
  },
  function free(words) {
    flush();
    buffers.get(words[0]).destroy();
    buffers.delete(words[0]);
  },
  function upload(words, bytes) {
    flush();
    gpu.queue.writeBuffer(buffers.get(words[0]), words[1], bytes.slice(8));
  },
  words => read(words[0], words[1], words[2]),
  function copy(words) {
    endPass();
    commands().copyBufferToBuffer(buffers.get(words[2]), words[3], buffers.get(words[0]), words[1], words[4]);
  },
  (words, bytes) => load(words[0], new TextDecoder().decode(bytes.subarray(4))),
  launch,
  async function synchronize() { await finish(); return new Uint8Array(); },
  words => { programs.delete(words[0]); },
];

async function answer(status, data) {
  await fetch('/answer', {method: 'POST', body: new Blob([new Uint32Array([status]), data])});
}

// The commands of a stream of bytes, which come in pieces of any size.
async function* messages(reader) {
  let pieces = [], held = 0;
  const take = count => {
    if (pieces.length > 1) {
      const all = new Uint8Array(held);
      let at = 0;
      for (const p of pieces) { all.set(p, at); at += p.length; }
      pieces = [all];
    }
    const out = pieces[0].slice(0, count);
    pieces = [pieces[0].subarray(count)];
    held -= count;
    return out;
  };
  let wanted = 0;
  for (;;) {
    while (held < (wanted || 4)) {
      const {done, value} = await reader.read();
      if (done) return;
      pieces.push(value);
      held += value.length;
    }
    if (!wanted) wanted = new Uint32Array(take(4).buffer)[0] - 4;
    else { yield take(wanted); wanted = 0; }
  }
}

let broken;  // the first error, until it is told
async function serve() {
  try { await answer(0, new TextEncoder().encode(await open())); }
  catch (e) { return answer(1, e.message); }
  const stream = (await fetch('/commands')).body.getReader();
  for await (const m of messages(stream)) {
    const operation = new Uint32Array(m.buffer, 0, 1)[0], bytes = m.subarray(4);
    const words = new Uint32Array(m.buffer, 4, (m.length - 4) >> 2);
    const asks = operation === 3 || operation === 7;
    let out;
    try { if (!broken) out = await operations[operation](words, bytes); }
    catch (e) { broken = e.message; }
    if (!asks) continue;
    if (broken) await answer(1, broken); else await answer(0, out);
    broken = undefined;
  }
}
serve();
