import { readFileSync } from "node:fs";
import { it, expect } from "vitest";
import { loadModel } from "../src/models/index.ts";
const golden = JSON.parse(readFileSync("test/models/fable-7m/golden.json","utf8"));
for (const f of ["Q8_0","Q4_0"]) it(f, async () => {
  using m = await loadModel(`/work/shared/models/fable-7m/fable-7m.${f}.gguf`, {});
  for (const g of golden) {
    expect(m.encode(g.prompt)).toEqual(g.prompt_ids);
    const ids: number[] = [];
    const t=performance.now();
    for await (const p of m.generate(g.prompt_ids, { maxTokens: 48, ignoreEos: true })) ids.push(p.token);
    const dt=performance.now()-t;
    using l = m.logits(g.prompt_ids); const d = l.dataSync() as Float32Array;
    const err = d.reduce((a,x,i)=>Math.max(a,Math.abs(x-g.last_logits[i])),0);
    const big = g.last_logits.reduce((a:number,x:number)=>Math.max(a,Math.abs(x)),0);
    // teacher forced
    const all=[...g.prompt_ids,...g.greedy_ids]; using f2 = m.forward(all.slice(0,-1)); using am = f2.argmax(-1); const a=am.dataSync() as Uint32Array; 
    const agree=g.greedy_ids.filter((x:number,i:number)=>a[g.prompt_ids.length-1+i]===x).length;
    console.log(f, ids.every((x,i)=>x===g.greedy_ids[i]), ids.findIndex((x,i)=>x!==g.greedy_ids[i]), "logit err", err, "of", big, "agree", agree, (48/dt*1000).toFixed(0)+" tok/s");
  }
});
