// Clicks on the pictures of the page that `cifar --page` wrote, gives it two of them as files, and
// compares what it says with what the network gave where it was trained.
//   node pictures.mjs FOLDER [SCREENSHOT.png]
import {openPage} from '../../extra/webgpu/browser.mjs';

const [folder, picture] = process.argv.slice(2);
const page = await openPage(folder, {width: 800, height: 560});
let worst = 0, right = 0, files = 0;
try {
  await page.wait(`state.textContent === 'ready'`, {say: 'state.textContent'});
  const {labels, scores, classes} = await page.evaluate('given'), count = labels.length;
  const answered = () => page.wait(`answer.textContent !== ''`, {say: 'state.textContent'});
  const compare = async i => {
    await answered();
    const own = await page.evaluate('scores');
    own.forEach((p, c) => { worst = Math.max(worst, Math.abs(p - scores[10 * i + c])); });
    return classes[own.indexOf(Math.max(...own))] === await page.evaluate('answer.textContent') && own;
  };
  for (let i = 0; i < count; ++i) {
    const [x, y] = await page.evaluate(`(r => [r.x + 9, r.y + 9])(some.children[${i}].getBoundingClientRect())`);
    await page.drag([[x, y]]);
    const own = await compare(i);
    right += own && own.indexOf(Math.max(...own)) === labels[i];
  }
  if (picture) await page.screenshot(picture);
  // The same pictures as files: PNG loses nothing.
  for (const i of [0, 1]) {
    await page.evaluate(`(async () => {
      const blob = await new Promise(done => some.children[${i}].toBlob(done)), all = new DataTransfer();
      all.items.add(new File([blob], 'picture.png', {type: 'image/png'}));
      answer.textContent = '';
      file.files = all.files;
      file.dispatchEvent(new Event('change'));
    })()`);
    files += !!await compare(i);
  }
  console.log(`${right} of ${count} pictures named as their labels say, ${files} of 2 files read; ` +
              `probabilities differ by ${worst.toExponential(1)}`);
  if (worst > 1e-4 || right < count * 0.8 || files < 2) process.exitCode = 1;
} finally { page.close(); }
