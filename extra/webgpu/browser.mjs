// A headless Chromium on a folder that is served from 127.0.0.1 (a secure context, which WebGPU
// wants), driven by its debugging protocol over a pipe. Needs node and nothing from npm.
//
//   const page = await openPage(folder);            // or {'/': folder, '/other': folder}
//   await page.evaluate('document.title');          // awaits promises; throws what the page throws
//   await page.evaluate(`module('/x.js')`);         // imports a file of the folders
//   await page.drag([[10, 10], [50, 60]]);          // with the mouse's button held
//   await page.type('a line');                      // where the focus is, and the key Enter
//   await page.screenshot('page.png');
//   page.close();
//
// CHROMIUM names the browser. With DAWN there is none, nor mouse, keys and pictures: dawn.mjs.
import {spawn} from 'node:child_process';
import {createReadStream, mkdtempSync, rmSync, statSync, writeFileSync} from 'node:fs';
import {createServer} from 'node:http';
import {tmpdir} from 'node:os';
import {extname, join, normalize} from 'node:path';
import {openDawn} from './dawn.mjs';

const kTypes = {'.html': 'text/html', '.js': 'text/javascript', '.mjs': 'text/javascript', '.json': 'application/json',
                '.wasm': 'application/wasm', '.png': 'image/png'};

function serve(folders) {
  const roots = Object.entries(folders).sort((a, b) => b[0].length - a[0].length);
  return createServer((request, response) => {
    const path = normalize(decodeURIComponent(request.url.split('?')[0]));
    const [prefix, root] = roots.find(([p]) => path.startsWith(p));
    let file = join(root, path.slice(prefix.length));
    try {
      if (statSync(file).isDirectory()) file = join(file, 'index.html');
      const size = statSync(file).size;
      // Shared memory, which threads of WebAssembly need, wants a page of its own.
      response.writeHead(200, {'content-type': kTypes[extname(file)] ?? 'application/octet-stream', 'content-length': size,
                               'cross-origin-opener-policy': 'same-origin', 'cross-origin-embedder-policy': 'require-corp'});
      createReadStream(file).pipe(response);
    } catch {
      response.writeHead(404);
      response.end();
    }
  });
}

export async function openPage(folders, {width = 900, height = 700, path = '/'} = {}) {
  const roots = typeof folders === 'string' ? {'/': folders} : folders;
  if (process.env.DAWN) return openDawn(roots);
  const server = serve(roots);
  await new Promise(done => server.listen(0, '127.0.0.1', done));
  const profile = mkdtempSync(join(tmpdir(), 'tiny-page-'));
  const browser = spawn(process.env.CHROMIUM || 'chromium',
    ['--headless', '--no-sandbox', '--enable-unsafe-webgpu', '--disable-dev-shm-usage', `--window-size=${width},${height}`,
     '--remote-debugging-pipe', `--user-data-dir=${profile}`, 'about:blank'],
    {stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe']});
  const waiting = new Map(), listeners = [];
  let number = 0, held = '';
  const failed = why => { for (const w of waiting.values()) w.reject(new Error(why)); waiting.clear(); };
  browser.on('error', e => failed(`no browser: ${e.message}`));
  browser.on('exit', code => failed(`the browser has ended (${code})`));
  browser.stdio[4].setEncoding('utf8');
  browser.stdio[4].on('data', text => {
    const messages = (held + text).split('\0');
    held = messages.pop();
    for (const m of messages.map(JSON.parse)) {
      if (m.method) for (const l of listeners) l(m);
      const w = waiting.get(m.id);
      waiting.delete(m.id);
      if (w) m.error ? w.reject(new Error(m.error.message)) : w.resolve(m.result);
    }
  });
  const send = (method, params = {}, sessionId) => new Promise((resolve, reject) => {
    waiting.set(++number, {resolve, reject});
    browser.stdio[3].write(JSON.stringify({id: number, method, params, sessionId}) + '\0');
  });
  const {targetId} = await send('Target.createTarget', {url: 'about:blank'});
  const {sessionId} = await send('Target.attachToTarget', {targetId, flatten: true});
  const call = (method, params) => send(method, params, sessionId);
  await call('Page.enable');
  await call('Emulation.setDeviceMetricsOverride', {width, height, deviceScaleFactor: 1, mobile: false});
  const loaded = new Promise(done => listeners.push(m => { if (m.method === 'Page.loadEventFired') done(); }));
  await call('Page.navigate', {url: `http://127.0.0.1:${server.address().port}${path}`});
  await loaded;
  const mouse = (type, [x, y], buttons) => call('Input.dispatchMouseEvent', {type, x, y, button: 'left', buttons, clickCount: 1});
  return {
    async evaluate(expression) {
      await call('Runtime.evaluate', {expression: 'globalThis.module = path => import(path); globalThis.fileOf = path => path'});
      const {result, exceptionDetails} = await call('Runtime.evaluate', {expression, awaitPromise: true, returnByValue: true});
      if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
      return result.value;
    },
    async drag(points) {
      await mouse('mousePressed', points[0], 1);
      for (const p of points) await mouse('mouseMoved', p, 1);
      await mouse('mouseReleased', points.at(-1), 0);
    },
    async type(line) {
      await call('Input.insertText', {text: line});
      const enter = {key: 'Enter', code: 'Enter', windowsVirtualKeyCode: 13, text: '\r'};
      for (const type of ['keyDown', 'keyUp']) await call('Input.dispatchKeyEvent', {type, ...enter});
    },
    // Until the expression is true; an error, with `say`'s value, after `seconds`.
    async wait(expression, {seconds = 60, say = `''`} = {}) {
      for (const end = Date.now() + 1000 * seconds; Date.now() < end; await new Promise(r => setTimeout(r, 50)))
        if (await this.evaluate(expression)) return;
      throw new Error(`waited ${seconds} s for ${expression}: ${await this.evaluate(say)}`);
    },
    async screenshot(file) {
      writeFileSync(file, Buffer.from((await call('Page.captureScreenshot', {format: 'png'})).data, 'base64'));
    },
    close() {
      server.close();
      server.closeAllConnections();
      browser.removeAllListeners('exit');
      const remove = times => {  // processes of the browser may still write there
        try { rmSync(profile, {recursive: true, force: true}); } catch { if (times) setTimeout(remove, 100, times - 1); }
      };
      browser.on('exit', () => remove(20));
      browser.kill();
    },
  };
}
