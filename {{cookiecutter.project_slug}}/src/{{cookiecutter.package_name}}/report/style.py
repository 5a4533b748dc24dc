"""The report's style sheet: light and dark, narrow, wide and printed, with no font to fetch."""

# Contrast (WCAG): words on paper at least 4.5, marks at least 3, in all schemes; tests compute it.
STYLE = """
:root {
  color-scheme: light dark;
  --paper: #fdfdfc; --panel: #f4f5f3; --ink: #1a1e23; --muted: #59626d; --hair: #dfe2e0;
  --mark: #0f6b64; --faint: #77a9a4; --warn: #96540a; --good: #1c6e3a; --on: #ffffff;
  --part0: #a35a08; --part1: #0f6b64; --part2: #2a5f9e; --part3: #6b4a9c; --part4: #9c3358;
  --part5: #56616d;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14171a; --panel: #1d2125; --ink: #e8eaec; --muted: #a3acb5; --hair: #343a40;
    --mark: #5cc4b6; --faint: #468c84; --warn: #e8a954; --good: #6fcf8f; --on: #101316;
    --part0: #e0a04c; --part1: #5cc4b6; --part2: #82b4ea; --part3: #b9a3e3; --part4: #e892ae;
    --part5: #a3acb5;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, -apple-system,
  "Segoe UI", Roboto, "Noto Sans", "Helvetica Neue", sans-serif; overflow-wrap: break-word;
  -webkit-text-size-adjust: 100%;
}
main, footer { max-width: 72rem; margin: 0 auto; padding: 0 clamp(1rem, 4vw, 3rem); }
main { padding-top: clamp(1.5rem, 4vw, 3.5rem); }
h1, h2, h3 { line-height: 1.2; text-wrap: balance; margin: 0; }
h1 { font-size: clamp(1.7rem, 1.2rem + 2.2vw, 2.7rem); letter-spacing: -0.02em; }
h2 { font-size: 1.2rem; letter-spacing: -0.005em; }
h3 { font-size: 1rem; }
p { margin: 0.5rem 0; max-width: 46rem; }
section { margin-top: 3rem; padding-top: 1.1rem; border-top: 1px solid var(--hair); }
small, .note, figcaption, th, dt { font-size: 0.875rem; color: var(--muted); }
.note { margin-bottom: 0; }
code {
  font: 0.875em/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace;
  background: var(--panel); border-radius: 4px; padding: 0.12em 0.4em; overflow-wrap: anywhere;
  -webkit-user-select: all; user-select: all;
}
.job { color: var(--muted); margin: 0 0 1rem; max-width: none; font-size: 0.9375rem; }
.job b { color: var(--ink); font-weight: 600; }
.certainty { font-weight: 600; margin: 0.7rem 0 0; color: var(--warn); }
.healthy .certainty { color: var(--good); }
.undecided .certainty { color: var(--muted); }
.lead { font-size: 1.125rem; max-width: 50rem; margin: 0.9rem 0; }
.first {
  border-left: 3px solid var(--mark); padding: 0.1rem 0 0.1rem 1rem; margin: 1.3rem 0;
  max-width: 50rem;
}
.first p { margin: 0.15rem 0; }
.figures {
  display: grid; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); gap: 1.3rem 1.5rem;
  margin: 2rem 0 0;
}
.figures dd { margin: 0; font-size: 1.5rem; line-height: 1.3; letter-spacing: -0.01em; }
.figures dd small { display: block; letter-spacing: 0; }
dd, td, .value { font-variant-numeric: tabular-nums; }
.stack { display: flex; height: 3.4rem; margin: 1.1rem 0 0.6rem; gap: 2px; }
.stack span {
  container-type: inline-size; min-width: 0; overflow: hidden; color: var(--on); line-height: 1.25;
  print-color-adjust: exact; -webkit-print-color-adjust: exact;
}
.stack span:first-child { border-radius: 4px 0 0 4px; }
.stack span:last-child { border-radius: 0 4px 4px 0; }
.stack b, .stack i {
  display: block; padding: 0 0.6rem; font-style: normal; font-size: 0.875rem; white-space: nowrap;
}
.stack b { font-size: 1.05rem; padding-top: 0.4rem; }
@container (max-width: 8.2rem) { .stack i { display: none; } .stack b { padding-top: 1rem; } }
@container (max-width: 3.6rem) {
  .stack b { font-size: 0.8rem; padding: 1.15rem 0 0; text-align: center; }
}
@container (max-width: 2rem) { .stack b { display: none; } }
.swatch {
  display: inline-block; width: 0.75em; height: 0.75em; border-radius: 2px; margin-right: 0.55em;
  print-color-adjust: exact; -webkit-print-color-adjust: exact;
}
table { border-collapse: collapse; width: 100%; margin-top: 0.8rem; font-size: 0.9375rem; }
th { text-align: left; font-weight: 500; vertical-align: bottom; }
th, td { padding: 0.35rem 1rem 0.35rem 0; border-bottom: 1px solid var(--hair); }
tbody th { color: var(--ink); font-weight: 400; font-size: inherit; vertical-align: top; }
th:last-child, td:last-child { padding-right: 0; }
.number { text-align: right; white-space: nowrap; }
td small { white-space: nowrap; }
.pair {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 21rem), 1fr));
  gap: 1rem 3rem;
}
figure { margin: 1rem 0 0; min-width: 0; }
figure > svg, .plot { margin-top: 0.4rem; }
svg { display: block; overflow: visible; }
svg text {
  font-size: 12px; fill: var(--muted); paint-order: stroke; stroke: var(--paper); stroke-width: 3px;
}
svg text.strong { fill: var(--ink); font-weight: 600; }
svg text.ceiling { fill: var(--warn); }
.plot { display: grid; grid-template-columns: 2.4rem minmax(0, 1fr); gap: 0.5rem; }
.grid { stroke: var(--hair); }
.axis { stroke: var(--muted); }
.level { stroke: var(--ink); stroke-dasharray: 2 3; }
.line { fill: none; stroke: var(--mark); stroke-width: 1.6px; stroke-linejoin: round; }
.dot { fill: var(--mark); }
.bin { fill: var(--faint); }
rect.bin { stroke: var(--paper); stroke-width: 1px; }
.one { stroke: var(--ink); }
line.ceiling { stroke: var(--warn); stroke-dasharray: 5 3; stroke-width: 1.5px; }
.whisker { stroke: var(--mark); stroke-width: 2px; }
.arrow { fill: none; stroke: var(--mark); stroke-width: 2px; }
circle.sure { fill: var(--mark); stroke: var(--mark); stroke-width: 2px; }
circle.unsure { fill: var(--paper); stroke: var(--muted); stroke-width: 2px; }
line.unsure, path.unsure { stroke: var(--muted); }
.gains { list-style: none; margin: 1.2rem 0 0; padding: 0; }
.gains > li {
  display: grid; grid-template-columns: minmax(0, 2fr) minmax(0, 3fr) 7.5rem; column-gap: 1.5rem;
  align-items: center; padding: 0.55rem 0;
}
.gains > li + li:not(.scale) { border-top: 1px solid var(--hair); }
.gains .scale { padding-top: 0; }
.gains .chart {
  grid-column: 2; align-self: stretch; display: grid; align-content: center; padding: 0 7px;
  clip-path: inset(-0.55rem 0);
}
.gains .scale .chart { clip-path: none; }
.gains .value { text-align: right; line-height: 1.3; }
.gains .value b { font-size: 1.125rem; }
.gains .value small { display: block; }
.gains p { margin: 0.1rem 0; font-size: 0.875rem; color: var(--muted); }
.gains h3 { font-weight: 600; }
.card { margin-top: 1.5rem; }
.card p { margin: 0.2rem 0; font-size: 0.9375rem; }
.minis {
  display: grid; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); gap: 0 2rem;
}
.minis figcaption b { color: var(--ink); float: right; font-weight: 600; }
.list { columns: 19rem 3; column-gap: 3rem; margin: 0.8rem 0 0; font-size: 0.875rem; }
.list div {
  display: flex; justify-content: space-between; gap: 1rem; padding: 0.22rem 0; break-inside: avoid;
  border-bottom: 1px solid var(--hair);
}
.list dd { margin: 0; text-align: right; overflow-wrap: anywhere; min-width: 0; }
.list dt { white-space: nowrap; }
ul.innocent { padding-left: 1.1rem; max-width: 46rem; }
ul.innocent li { margin: 0.35rem 0; }
footer { margin-top: 3.5rem; padding-bottom: 3rem; font-size: 0.875rem; color: var(--muted); }
@media (max-width: 46rem) {
  section { margin-top: 2.2rem; }
  .gains > li { grid-template-columns: minmax(0, 1fr) auto; row-gap: 0.3rem; }
  .gains .chart { grid-column: 1 / -1; grid-row: 2; clip-path: inset(0); }
  .figures { grid-template-columns: repeat(2, minmax(0, 1fr)); }
  .figures dd { font-size: 1.3rem; }
  .minis { grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 0 1.2rem; }
  .wide { display: none; }
  th, td { padding-right: 0.6rem; }
  .number small { display: block; }
  tbody th { min-width: 7.5rem; }
}
@media print {
  :root {
    --paper: #ffffff; --panel: #f4f5f3; --ink: #000000; --muted: #444b53; --hair: #cfd3d1;
    --mark: #0f6b64; --faint: #77a9a4; --warn: #8a4b06; --good: #1c6e3a; --on: #ffffff;
    --part0: #a35a08; --part1: #0f6b64; --part2: #2a5f9e; --part3: #6b4a9c; --part4: #9c3358;
    --part5: #56616d;
  }
  body { font-size: 11pt; }
  main, footer { max-width: none; padding: 0; }
  section { margin-top: 1.4rem; }
  .figures, .minis { grid-template-columns: repeat(5, minmax(0, 1fr)); column-gap: 1rem; }
  figure, tr, .gains > li, .card, .first, .stack { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
}
"""
