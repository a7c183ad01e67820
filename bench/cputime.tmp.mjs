import { workloads } from "./workloads.mjs";
const wick=await import("./peers/wick.mjs"), ort=await import("./peers/onnxruntime-node.mjs");
await wick.threads(1); ort.threads(1);
const only=process.argv[2]?.split(",");
const cpu=()=>{const {user,system}=process.cpuUsage(); return (user+system)/1e3;};
for (const w of workloads) { if(only&&!only.includes(w.op))continue; if(w.op==="transpose")continue;
  const tasks=[]; for (const p of [wick,ort]) tasks.push(await p.cases[w.op](w.shapes,w.params??{}));
  const xs=[[],[]];
  for (const t of tasks) for(let i=0;i<3;i++) await t.run();
  const T=performance.now();
  for (let r=0; r<15 && performance.now()-T<12000; r++) for (const i of r%2?[0,1]:[1,0]) { const c=cpu(); const b=performance.now(); let n=0; do { const x=tasks[i].run(); if (x instanceof Promise) await x; n++; } while(performance.now()-b<60); xs[i].push((cpu()-c)/n); }
  for (const t of tasks) await t.dispose?.();
  const med=x=>x.sort((a,b)=>a-b)[x.length>>1]; const work=w.flops??w.bytes; const [a,b]=xs.map(med); const [am,bm]=xs.map(x=>x[0]);
  console.log(`${w.op} ${w.label}`.padEnd(36),`wick ${(work/a/1e6).toFixed(1)} ort ${(work/b/1e6).toFixed(1)} ratio ${(b/a).toFixed(2)}  best/best ${(bm/am).toFixed(2)}`);
}
process.exit(0);
