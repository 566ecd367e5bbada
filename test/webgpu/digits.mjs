// Draws digits with the mouse on the page that `mnist --page` wrote, and reads the answers.
//   node digits.mjs FOLDER [SCREENSHOT.png]
import {openPage} from '../../extra/webgpu/browser.mjs';

// Strokes in the pad's 280 x 280 pixels.
const line = (...points) => points;
const arc = (x, y, rx, ry, from, to) => Array.from({length: 25}, (_, i) => {
  const a = (from + (to - from) * i / 24) * Math.PI / 180;
  return [x + rx * Math.cos(a), y - ry * Math.sin(a)];
});
const kDigits = {
  0: [arc(140, 140, 55, 85, 90, 450)],
  1: [line([140, 50], [140, 100], [140, 160], [140, 230])],
  3: [[...arc(130, 95, 50, 40, 140, -90), ...arc(130, 180, 55, 45, 90, -140)]],
  4: [line([110, 50], [85, 150], [200, 150]), line([165, 60], [165, 130], [165, 235])],
  7: [line([75, 60], [140, 60], [205, 60], [160, 140], [125, 230])],
};

const [folder, picture] = process.argv.slice(2);
const page = await openPage(folder, {width: 760, height: 480});
let wrong = 0;
try {
  const wait = what => page.wait(what, {say: 'state.textContent'});
  await wait(`state.textContent === 'ready'`);
  const [left, top] = await page.evaluate(`[pad.getBoundingClientRect().x, pad.getBoundingClientRect().y]`);
  for (const [digit, strokes] of Object.entries(kDigits)) {
    await page.evaluate(`clear.click()`);
    for (const s of strokes) {
      await page.evaluate(`answer.textContent = ''`);
      await page.drag(s.map(([x, y]) => [left + x, top + y]));
      await wait(`answer.textContent !== ''`);
    }
    const read = await page.evaluate(`answer.textContent`);
    console.log(`drew ${digit}, read ${read}`);
    wrong += read !== digit;
    if (digit === '3' && picture) await page.screenshot(picture);
  }
} finally { page.close(); }
process.exitCode = wrong ? 1 : 0;
