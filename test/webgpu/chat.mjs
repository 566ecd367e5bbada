// Types lines on the page that `chat --page` wrote, and reads what it writes on.
//   node chat.mjs FOLDER 'LINES' [OPTIONS] [SCREENSHOT.png]
// LINES is a JSON list of lines of one conversation, OPTIONS a JSON object: `temperature`, `tokens`,
// and a `seed` of the draws. Prints an object for each line: `text` as the page shows it, the
// `tokens` of the answer, the `pieces` in which the text came, and the page's `state`.
import {openPage} from '../../extra/webgpu/browser.mjs';

const [folder, lines, options = '{}', picture] = process.argv.slice(2);
const {temperature = 0, tokens = 40, seed} = JSON.parse(options);
const page = await openPage(folder, {width: 760, height: 480});
try {
  await page.wait(`state.textContent === 'ready'`, {say: 'state.textContent'});
  await page.evaluate(`temperature.value = ${temperature}; document.getElementById('tokens').value = ${tokens};
    chat.settings.seed = ${seed}; pieces = 0;
    new MutationObserver(all => { pieces += all.length; }).observe(text, {childList: true, subtree: true}); 0`);
  for (const line of JSON.parse(lines)) {
    await page.evaluate(`pieces = 0; line.focus()`);
    await page.type(line);
    await page.wait(`!line.disabled`, {seconds: 300, say: 'state.textContent'});
    console.log(JSON.stringify(await page.evaluate(
      `({text: text.textContent, tokens: chat.answer, pieces, state: state.textContent})`)));
  }
  if (picture) await page.screenshot(picture);
} finally { page.close(); }
