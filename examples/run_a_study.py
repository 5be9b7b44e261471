"""Run a study and look at its table: the rows of TEPO's Table 3, Panel E, with a verdict beside the baseline."""

import tepo

result = tepo.run("panel_e", scale="laptop", seeds=[0, 1])
print(result.table[["label", "average", "difference", "verdict"]])
result.save_page("panel_e.html")
