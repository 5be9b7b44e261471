"""Charts as Vega-Lite specifications, by Altair: one function from a frame to a chart. The page, `tepo figure`,
documents and notebooks share them; `style` gives them one look and writes them as SVG, PDF, PNG, HTML and JSON.

Every frame has a column `method`, the label of the row: a method selected in one chart of a page is selected in all.
"""
