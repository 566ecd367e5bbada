// The same as browser.mjs without a browser: expressions run in this process, on the WebGPU of Dawn,
// npm's package webgpu, whose folder DAWN names. There is no document: for models alone.
import {readFileSync} from 'node:fs';
import {availableParallelism} from 'node:os';
import {extname, join, normalize, resolve} from 'node:path';
import {pathToFileURL} from 'node:url';

export async function openDawn(folders) {
  const {create, globals} = await import(pathToFileURL(resolve(process.env.DAWN, 'index.js')));
  Object.assign(globalThis, globals);
  // Dawn takes no memory that threads share, as that of WebAssembly with threads is.
  const write = GPUQueue.prototype.writeBuffer;
  GPUQueue.prototype.writeBuffer = function (buffer, offset, data, ...part) {
    return write.call(this, buffer, offset, data.buffer instanceof SharedArrayBuffer ? data.slice() : data, ...part);
  };
  Object.defineProperty(globalThis, 'navigator', {
    value: {gpu: create([]), hardwareConcurrency: availableParallelism()}, configurable: true});
  const roots = Object.entries(folders).sort((a, b) => b[0].length - a[0].length);
  const fileOf = path => {
    const full = normalize(join('/', path)), [prefix, root] = roots.find(([p]) => full.startsWith(p));
    return `${resolve(root)}/${full.slice(prefix.length)}`;
  };
  const own = globalThis.fetch;
  globalThis.fetch = async (url, options) => {
    if (/^\w+:/.test(String(url))) return own(url, options);
    const bytes = readFileSync(fileOf(url));
    return new Response(bytes, {headers: {'content-length': bytes.length}});
  };
  // A .js would be taken for a script: its text is the module.
  const load = path => import(extname(path) === '.js'
    ? 'data:text/javascript,' + encodeURIComponent(readFileSync(fileOf(path), 'utf8'))
    : pathToFileURL(fileOf(path)));
  return {
    evaluate: expression => new Function('module', 'fileOf', `return ${expression}`)(load, fileOf),
    // Dawn works as long as it is there; threads of others may wait for more.
    close() {
      delete globalThis.navigator;
      setTimeout(() => process.exit(), 100).unref();
    },
  };
}
