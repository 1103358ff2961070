// What scripted crystals say in the cases.
export const echo = (n, text = `t${n}`, more = {}) => ({ content: `Turn ${n} says a few words.`, tool_calls: [{ id: `c${n}`, gate: "echo", args: { text } }], ...more });
export const done = (answer = "over") => ({ tool_calls: [{ id: "end", gate: "done", args: { answer } }] });
export const ECHO = "[gates.echo]\n[wards]\nmax_turns = 1000\n";
export const words = (count, each = "word") => Array.from({ length: count }, (_, n) => `${each}${n}`).join(" ");

/** Texts that try to be more than text. */
export const HOSTILE = [
  "<script>document.title='owned'</script>", "<img src=x onerror=alert(1)>", "<svg onload=alert(1)>", "</textarea><script>alert(1)</script>",
  "[click](javascript:alert(1))", "![x](https://evil.example/x.png)", "[a](//evil.example) [b](data:text/html,x)",
  "<math><mtext></math><style>*{display:none}</style>", "<meta http-equiv=refresh content='0;url=https://evil.example'>",
  "<iframe src=https://evil.example></iframe>", "<form action=https://evil.example><button>x</button></form>",
  "<base href=https://evil.example>", "<link rel=stylesheet href=https://evil.example/x.css>", "\u202Etxt.exe", "\u001b[31mred", "&lt;b&gt;", "`</code></pre>`",
  "\"><b onmouseover=alert(1)>", "'-alert(1)-'", `${"> ".repeat(60)}deep`,
];
