// llama.cpp, by node-llama-cpp, on the files that extra/bench/quantized.cpp measures:
//
//   npm install --prefix build --ignore-scripts node-llama-cpp @node-llama-cpp/linux-x64
//   NODE_PATH=build/node_modules node extra/bench/quantized_peer.mjs THREADS model.gguf...
import {createRequire} from "node:module";
import {pathToFileURL} from "node:url";
const found = createRequire(process.cwd() + "/build/").resolve("node-llama-cpp");
const {getLlama} = await import(pathToFileURL(found).href);

const [threads, ...files] = [Number(process.argv[2]), ...process.argv.slice(3)];
const llama = await getLlama({gpu: false, build: "never", maxThreads: threads, logLevel: "error"});
const processor = () => {
  const {user, system} = process.cpuUsage();
  return (user + system) / 1e6;
};
const wall = () => performance.now() / 1e3;
const line = (name, count, least) => console.log(JSON.stringify({
  threads, name, per_second: +(count / least.wall).toFixed(1),
  per_processor_second: +(count / least.processor).toFixed(1)}));

for (const file of files) {
  const model = await llama.loadModel({modelPath: file, useMmap: true});
  const context = await model.createContext({contextSize: 1024, batchSize: 512, threads});
  const sequence = context.getSequence();
  const prompt = Array.from({length: 512}, (_, i) => 320 + (i * 7919) % 28800);
  const run = async (tokens, count) => {
    await sequence.clearHistory();
    const times = [[wall(), processor()]];
    for await (const token of sequence.evaluate(tokens, {temperature: 0, yieldEogToken: true})) {
      times.push([wall(), processor()]);
      if (times.length > count) break;
    }
    return times.slice(1).map(([w, p], i) => ({wall: w - times[i][0], processor: p - times[i][1]}));
  };
  const least = (all) => ({wall: Math.min(...all.map((t) => t.wall)),
                           processor: Math.min(...all.map((t) => t.processor))});
  const name = file.split("/").pop();
  line(`decode ${name}`, 1, least((await run(prompt.slice(0, 8), 48)).slice(3)));
  const prompts = [];
  for (let round = 0; round < 3; ++round) prompts.push((await run(prompt, 1))[0]);
  line(`prefill ${name}`, 512, least(prompts));
  await context.dispose();
  await model.dispose();
}
process.exit(0);
