// `context` is what was piped in. Every call below is recorded: a run that is killed goes on where it was, and a fork
// from one of its turns finds these variables as they stood there.
const lines = context.trim().split("\n");
const asked = lines.map(line => ({intent: `Is this a question? ${line}`, medium: "conversation"}));
const answers = call_agent_batch(asked);
done({lines: lines.length, questions: lines.filter((line, at) => answers[at] === true)});
