"""How an HTML report looks: on a phone, on a screen, at night and on paper.

Colours of verdicts are Okabe and Ito's blue, vermilion and orange, which people with any common colour blindness can tell
apart; the words and a sign before them say the same without colour.
"""

CSS = """
:root { color-scheme: light dark; --ink: #1a1a1a; --soft: #555; --paper: #fff; --shade: #f3f4f6; --line: #d5d8dd;
  --link: #005a9c; --held: #0072b2; --against: #b34700; --open: #8a6100; --none: #5c5c5c; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --soft: #b3b3b3; --paper: #16181c; --shade: #22262c;
  --line: #3b4048; --link: #7cc4f5; --held: #63b8f0; --against: #ff9a52; --open: #f0c04a; --none: #b3b3b3; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; max-width: 76rem; padding: 1rem; background: var(--paper); color: var(--ink); line-height: 1.5;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 1rem; }
h2 { font-size: 1.25rem; border-top: 1px solid var(--line); padding-top: 1rem; margin: 2rem 0 .5rem; }
h3 { font-size: 1.05rem; margin: 1.5rem 0 .5rem; }
h4 { font-size: 1rem; margin: 1.25rem 0 .25rem; }
a { color: var(--link); }
nav ul { list-style: none; display: flex; flex-wrap: wrap; gap: .25rem 1rem; padding: 0; margin: 0 0 1rem; }
nav a { display: inline-block; padding: .2rem 0; }
dl { display: grid; grid-template-columns: minmax(7rem, max-content) 1fr; gap: .15rem 1rem; margin: .5rem 0 1rem; }
dt { color: var(--soft); grid-column: 1; }
dd { margin: 0; grid-column: 2; min-width: 0; }
.scroll { overflow-x: auto; margin: .5rem 0 1rem; border: 1px solid var(--line); border-radius: 4px; }
table { border-collapse: collapse; font-size: .875rem; min-width: 100%; width: max-content; max-width: max(100%, 60rem);
  overflow-wrap: normal; }
caption { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
th, td { text-align: left; vertical-align: top; padding: .35rem .6rem; border-bottom: 1px solid var(--line);
  font-variant-numeric: tabular-nums; min-width: 4.5rem; }
tbody th { font-weight: normal; min-width: 9rem; }
thead th { background: var(--shade); }
tbody tr:last-child > * { border-bottom: 0; }
code, pre { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; font-size: .85em; }
code { background: var(--shade); border-radius: 3px; padding: 0 .2em; }
pre { background: var(--shade); border-radius: 4px; padding: .6rem .8rem; overflow-x: auto; }
pre code { padding: 0; overflow-wrap: normal; }
figure { margin: 1rem 0 1.5rem; }
figure img { display: block; max-width: 100%; height: auto; background: #fff; border: 1px solid var(--line); }
figcaption { color: var(--soft); font-size: .875rem; margin-top: .3rem; }
.verdict { font-weight: 600; border-left: .3em solid; padding-left: .4em; }
.verdict.held { color: var(--held); }
.verdict.against { color: var(--against); }
.verdict.open { color: var(--open); }
.verdict.none { color: var(--none); }
@media (max-width: 34rem) { dl { grid-template-columns: 1fr; gap: 0; } dt, dd { grid-column: 1; }
  dd { margin-bottom: .4rem; } body { padding: .75rem; } tbody th { width: 9.5rem; } table { max-width: none; }
  td { max-width: 18rem; } }
@media screen and (max-width: 34rem) { .cards { width: 100%; max-width: 100%; }
  .cards thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  .cards, .cards tbody, .cards tr, .cards tbody th, .cards td { display: block; min-width: 0; width: auto; max-width: 100%; }
  .cards tr { border-bottom: 1px solid var(--line); padding: .4rem 0; } .cards tbody tr:last-child { border-bottom: 0; }
  .cards th, .cards td { border-bottom: 0; padding: .1rem .6rem; overflow-wrap: anywhere; }
  .cards tbody th { font-weight: 600; }
  .cards td:empty { display: none; }
  .cards td::before { content: attr(data-label) ": "; color: var(--soft); } }
@media print {
  :root { color-scheme: light; --ink: #000; --soft: #333; --paper: #fff; --shade: #f3f3f3; --line: #bbb; --link: #000;
    --held: #00568a; --against: #8f3900; --open: #6b4b00; --none: #444; }
  @page { margin: 14mm; }
  body { max-width: none; padding: 0; font-size: 9.5pt; }
  nav { display: none; }
  .scroll { overflow: visible; border: 0; }
  table { font-size: 7pt; overflow-wrap: anywhere; width: 100%; max-width: 100%; }
  th, td, tbody th { min-width: 13mm; padding: .15rem .3rem; }
  pre { white-space: pre-wrap; }
  h2, h3, h4, thead { break-after: avoid; }
  tr, figure, pre { break-inside: avoid; }
  figure img { max-height: 230mm; width: auto; }
}
"""
