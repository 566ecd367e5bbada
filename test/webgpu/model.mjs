// Runs an exported model in a browser by its model.js.
//   node model.mjs FOLDER INPUTS
// INPUTS is a JSON list of runs, each an object of arrays and numbers by name; "reset" sets the state
// back. Prints a line for each output: its name, its shape, its values.
import {openPage} from '../../extra/webgpu/browser.mjs';

const [folder, inputs] = process.argv.slice(2);
const page = await openPage(folder);
try {
  const lines = await page.evaluate(`(async () => {
    const {load} = await module('/model.js'), m = await load('.'), lines = [];
    for (const run of ${inputs}) {
      if (run === 'reset') { await m.reset(); continue; }
      let out;
      try { out = await m.run(run); } catch (e) { lines.push('error ' + e.message); continue; }
      for (const [name, x] of Object.entries(out)) lines.push(name + ' [' + x.shape + '] ' + Array.from(x, Number).join(' '));
    }
    return lines;
  })()`);
  console.log(lines.join('\n'));
} finally { page.close(); }
