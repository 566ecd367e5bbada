// Opens a browser on the page of the device WEBGPU and passes bytes between it and this process's
// standard input and output: commands as they come, answers with their length in front.
//   node runner.mjs <text of page.js> [<folder of npm's package webgpu>]
// CHROMIUM names the browser; it needs no network but 127.0.0.1, which is a secure context. With
// the folder of that package the page's script runs in this process instead.
import {spawn} from 'node:child_process';
import {mkdtempSync, rmSync} from 'node:fs';
import {createServer} from 'node:http';
import {tmpdir} from 'node:os';
import {join, resolve} from 'node:path';
import {Readable} from 'node:stream';
import {pathToFileURL} from 'node:url';

const [page, dawn] = process.argv.slice(process.argv[1].endsWith('.mjs') ? 2 : 1);

function answer(bytes) {
  const length = Buffer.alloc(4);
  length.writeUInt32LE(bytes.length);
  process.stdout.write(Buffer.concat([length, bytes]));
}
// Processes of the browser may still write there.
function remove(times) {
  try { rmSync(profile, {recursive: true, force: true}); } catch { if (times) return setTimeout(remove, 100, times - 1); }
  process.exit(0);
}
let profile;
const failure = text => Buffer.concat([Buffer.from([1, 0, 0, 0]), Buffer.from(text)]);

const server = createServer((request, response) => {
  if (request.url === '/commands') {
    response.writeHead(200, {'content-type': 'application/octet-stream'});
    process.stdin.pipe(response);
  } else if (request.url === '/answer') {
    const pieces = [];
    request.on('data', piece => pieces.push(piece));
    request.on('end', () => { answer(Buffer.concat(pieces)); response.end(); });
  } else if (request.url === '/page.js') {
    response.writeHead(200, {'content-type': 'text/javascript'});
    response.end(page);
  } else {
    response.writeHead(200, {'content-type': 'text/html'});
    response.end('<!doctype html><script type="module" src="/page.js"></script>');
  }
});

async function runHere(folder) {
  process.stdin.on('end', () => process.exit(0));
  try {
    const {create, globals} = await import(pathToFileURL(resolve(folder, 'index.js')));
    Object.assign(globalThis, globals);
    Object.defineProperty(globalThis, 'navigator', {value: {gpu: create([])}});
  } catch (e) {
    answer(failure(`no WebGPU in DAWN=${folder}: ${e.message}`));
    process.exit(1);
  }
  globalThis.fetch = async (path, {body} = {}) =>
    path === '/commands' ? {body: Readable.toWeb(process.stdin)} : answer(Buffer.from(await body.arrayBuffer()));
  await import('data:text/javascript,' + encodeURIComponent(page));
}

if (dawn) await runHere(dawn);
else server.listen(0, '127.0.0.1', () => {
  profile = mkdtempSync(join(tmpdir(), 'tiny-webgpu-'));
  const browser = spawn(process.env.CHROMIUM || 'chromium',
    ['--headless', '--no-sandbox', '--enable-unsafe-webgpu', '--disable-dev-shm-usage',
     '--remote-debugging-port=0', `--user-data-dir=${profile}`,
     `http://127.0.0.1:${server.address().port}/`], {stdio: 'ignore'});
  const end = () => { browser.kill(); };
  browser.on('error', e => { answer(failure(`no browser: ${e.message}`)); process.exit(1); });
  browser.on('exit', code => {
    answer(failure(`the browser has ended (${code})`));
    remove(20);
  });
  process.stdin.on('end', end);
  process.on('SIGTERM', end);
});
