"""The style sheet of everything that cave shows in a notebook.

Colours come from JupyterLab's variables, then from VS Code's, then from a light or dark
set by `prefers-color-scheme`. Where a notebook is not trusted and drops style sheets, the
markup (tables, details, pre) still reads in order.
"""

from __future__ import annotations

CSS = """\
.cave{--c-fg:var(--jp-content-font-color1,var(--vscode-editor-foreground,#1f2328));
--c-dim:var(--jp-content-font-color2,var(--vscode-descriptionForeground,#626a73));
--c-line:var(--jp-border-color2,var(--vscode-panel-border,#d5d9de));
--c-soft:var(--jp-layout-color2,var(--vscode-textCodeBlock-background,#f3f5f7));
--c-ok:var(--jp-success-color1,#1a7f37);--c-bad:var(--jp-error-color1,#c62828);
--c-warn:var(--jp-warn-color1,#9a6700);--c-link:var(--jp-brand-color1,#0969da);
--c-k:var(--jp-mirror-editor-keyword-color,#8250a8);
--c-s:var(--jp-mirror-editor-string-color,#0a5c36);
--c-n:var(--jp-mirror-editor-number-color,#0550ae);
color:var(--c-fg);font:13px/1.5 var(--jp-ui-font-family,system-ui,sans-serif);max-width:72em}
@media (prefers-color-scheme:dark){.cave{
--c-fg:var(--jp-content-font-color1,var(--vscode-editor-foreground,#e6edf3));
--c-dim:var(--jp-content-font-color2,var(--vscode-descriptionForeground,#9aa4af));
--c-line:var(--jp-border-color2,var(--vscode-panel-border,#3a424b));
--c-soft:var(--jp-layout-color2,var(--vscode-textCodeBlock-background,#1b2128));
--c-ok:var(--jp-success-color1,#4cc266);--c-bad:var(--jp-error-color1,#ff7b72);
--c-warn:var(--jp-warn-color1,#d9a53c);--c-link:var(--jp-brand-color1,#6cb2ff);
--c-k:var(--jp-mirror-editor-keyword-color,#d2a8ff);
--c-s:var(--jp-mirror-editor-string-color,#8ddb8c);
--c-n:var(--jp-mirror-editor-number-color,#79c0ff)}}
.cave *{box-sizing:border-box}
.cave p{margin:.35em 0}
.cave .c-bar{display:flex;flex-wrap:wrap;gap:.2em .9em;align-items:baseline;
color:var(--c-dim);font-size:12px}
.cave .c-bar b{color:var(--c-fg);font-size:13px}
.cave .c-ask{margin:.3em 0 .5em;padding:.1em .8em;border-left:3px solid var(--c-link);
white-space:pre-wrap;overflow-wrap:anywhere}
.cave details,.cave .c-box{border:1px solid var(--c-line);border-radius:6px;margin:.3em 0;
overflow:hidden}
.cave .c-trace{border:0;margin:0;font-size:12px;color:var(--c-dim)}
.cave summary{cursor:pointer;padding:.25em .7em;overflow-wrap:anywhere}
.cave details[open]:not(.c-trace)>summary{border-bottom:1px solid var(--c-line)}
.cave .c-dim{color:var(--c-dim)}
.cave .c-ok{color:var(--c-ok)}
.cave .c-bad{color:var(--c-bad)}
.cave .c-warn{color:var(--c-warn)}
.cave pre{margin:0;padding:.5em .8em;background:none;color:var(--c-fg);border:0;overflow:auto;
scrollbar-color:var(--c-line) transparent;max-height:26em;white-space:pre;
font:12px/1.45 var(--jp-code-font-family,ui-monospace,monospace)}
.cave pre.c-code{background:var(--c-soft)}
.cave pre.c-err{color:var(--c-dim)}
.cave pre.c-bad{color:var(--c-bad)}
.cave .c-news{padding:.4em .8em;font-size:12px;color:var(--c-dim);overflow-wrap:anywhere}
.cave img{max-width:100%;margin:.5em .8em;background:#fff;border-radius:4px}
.cave .c-answer{margin:.6em 0 .2em;overflow-wrap:anywhere}
.cave table{border-collapse:collapse;margin:.4em 0;font-size:12px;color:var(--c-fg);
border:0;table-layout:auto}
.cave .c-wide{overflow-x:auto}
.cave.cave th,.cave.cave td{padding:.25em .8em;text-align:left;vertical-align:top;border:0;
border-bottom:1px solid var(--c-line);white-space:nowrap;background:none;max-width:none}
.cave.cave th{color:var(--c-dim);font-weight:600}
.cave.cave td.c-num,.cave.cave th.c-num{text-align:right;font-variant-numeric:tabular-nums}
.cave.cave td.c-text{white-space:normal;min-width:18em;overflow-wrap:anywhere;color:var(--c-dim)}
.cave code{font:12px var(--jp-code-font-family,ui-monospace,monospace);background:var(--c-soft);
color:var(--c-fg);padding:.05em .3em;border-radius:3px}
.cave [class^=ck]{color:var(--c-k)}
.cave [class^=cs]{color:var(--c-s)}
.cave [class^=cm]{color:var(--c-n)}
.cave [class^=cc]{color:var(--c-dim);font-style:italic}
"""
"""Everything under `.cave`, written twice where JupyterLab's own rules for tables are as strong;
the short classes c? are pygments' token types."""


def framed(body: str) -> str:
    """`body` with its style sheet, as one self-contained piece."""
    return f'<style>{CSS}</style><div class="cave">{body}</div>'
