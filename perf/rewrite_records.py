"""Rewrites the records of before as frames, once. Not kept: the next commit removes it.

First part, with the code of 361eba1a: python rewrite_records.py dump; second, with today's: … write records; third, to take
host names out of excerpts: … clean."""

import sys

if sys.argv[1] == "dump":
    # with the old code
    import json, pickle
    from dataclasses import asdict
    from pathlib import Path
    from tepo.store.records.archive import read_records
    from tepo.store.records.thinned_metrics import unpack
    out={}
    for path in sorted(Path('records').glob('*.xz')):
        rows=[]
        for r in read_records(path):
            rows.append(dict(run=r.id,recipe=r.recipe,study=r.study,label=r.label,model=r.model,seed=r.seed,words=list(r.words),
                ending=r.ended and asdict(r.ended), made=[dict(m) for m in r.made], costs=[asdict(c) for c in r.cost],
                validation=r.validation and {"problems":r.validation.problems,"share":r.validation.share,"right":{k:list(v) for k,v in r.validation.right.items()}},
                excerpt=pickle.dumps(r.quoted) if r.quoted else None,
                metrics=unpack(r.shown),
                verdicts={n:dict(problems=v.on.problems,right=v.right,samples=v.on.samples,grader=v.on.grader,task=dict(v.on.task),timeouts=v.timeouts) for n,v in r.verdicts.items()}))
        out[path.name.split('.')[0]]=rows
    pickle.dump(out,open('build/old.pkl','wb'))
    print({k:len(v) for k,v in out.items()})

elif sys.argv[1] == "write":
    sys.argv = sys.argv[1:]
    # with the new code
    import pickle, json, sys
    from pathlib import Path
    import pandas as pd
    from tepo.store.facts import scores_of, curves_of, joined_scores, joined_curves
    from tepo.store.evaluation_result import RightAnswers
    from tepo.store.records import Frames, write_frames, excerpt_json
    from tepo.store.thinned_metrics import thinned
    from tepo.studies.claims import load_claims
    old=pickle.load(open('build/old.pkl','rb'))
    batch={c.name:f"claims-{c.batch}" for c in load_claims().claims}
    dst=Path(sys.argv[1])
    J=lambda v: json.dumps(v,ensure_ascii=False,separators=(",",":"))
    groups={}
    hosts=0
    for name,rows in old.items():
        for r in rows:
            groups.setdefault(batch[r["study"]] if name=="claims" else name,[]).append(r)
    for name,rows in groups.items():
        runs=[];sc=[];cu=[]
        for r in rows:
            made=[{k:v for k,v in m.items() if k!="host"} for m in r["made"]]
            hosts+=sum("host" in m for m in r["made"])
            runs.append(dict(run=r["run"],recipe=r["recipe"],study=r["study"],label=r["label"],model=r["model"],seed=r["seed"],words=r["words"],trained=len(r["metrics"]),
                ending=r["ending"] and J(r["ending"]), made=J(made), costs=J(r["costs"]), validation=r["validation"] and J(r["validation"]), excerpt=r["excerpt"] and excerpt_json(pickle.loads(r["excerpt"]))))
            for n,v in r["verdicts"].items():
                sc.append(scores_of(r["run"],n,RightAnswers(tuple(v["problems"]),tuple(v["right"]),v["samples"]),v["grader"],J(v["task"]),v["timeouts"]))
            m=[{k:x for k,x in row.items() if not isinstance(x,list)} for row in r["metrics"]]
            assert thinned(m)==m, (name, r["run"])
            if m: cu.append(curves_of(r["run"],m))
        write_frames(dst/name,Frames(pd.DataFrame(runs),joined_scores(sc),joined_curves(cu)))
        print(name,len(rows),{p.name:p.stat().st_size for p in (dst/name).iterdir()})
    print("hosts",hosts, sum(p.stat().st_size for p in dst.rglob('*') if p.is_file()))

else:
    from pathlib import Path
    import json, pandas as pd
    from tepo.store import records as R
    for f in sorted(Path("records").iterdir()):
        if f.is_dir():
            frames=R.read_frames(f)
            runs=frames.runs.copy()
            def clean(x):
                def walk(v):
                    if isinstance(v,dict): return {k:walk(y) for k,y in v.items() if k!="host"}
                    if isinstance(v,list): return [walk(y) for y in v]
                    return v
                return R._json(walk(json.loads(x))) if isinstance(x,str) else None
            for c in ("made","excerpt"): runs[c]=[clean(x) for x in runs[c]]
            for c in ("ending","validation"): runs[c]=[x if isinstance(x,str) else None for x in runs[c]]
            R.write_frames(f,R.Frames(runs,frames.scores,frames.curves))
            R.check_content(f)
    print(sum(p.stat().st_size for p in Path("records").rglob("*") if p.is_file()))
