//! Metrics that are programs: the same score on every machine, no score for a program that fails, and nothing within
//! reach. Commands run in a cage.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use cantrip_contract::{Metric, Unscored};
use cantrip_ds::metric::{Case, CaseOutcome, CommandCage, MetricSandboxes, MetricScorer, NoJudge, Scoring};
use cantrip_medium_python::Options;
use cantrip_reply::codes;
use cantrip_reply::testing::assert_code;
use serde_json::{Value, json};

use crate::metrics::metric;
use crate::support::replied;

const LANGUAGES: [&str; 2] = ["javascript", "python"];

/// A scorer with its own sandboxes, as a process or a machine has them.
fn machine() -> MetricScorer {
    MetricScorer::new(MetricSandboxes::with_python(Options::in_process()), CommandCage::default())
}

fn program(language: &str, source: &str) -> Metric {
    metric(json!({"type": "program.v1", "language": language, "source": source}))
}

async fn scored_as(scorer: &MetricScorer, metric: &Metric, example_id: &str, output: &Value) -> Scoring {
    let outcome = CaseOutcome {
        reply_type: "Success".to_owned(),
        code: "WA-EXEC-S-001".to_owned(),
        turns: 2,
        cost: 1_500,
        gates: vec!["read".to_owned()],
    };
    let (input, expected) = (json!({"question": "6 x 7?"}), json!({"answer": 42}));
    let case = Case { example_id, input: &input, expected: Some(&expected), output, outcome: &outcome, reward: None };
    scorer.score(metric, &case, &NoJudge).await.unwrap().scoring
}

async fn scored(scorer: &MetricScorer, metric: &Metric) -> Scoring {
    scored_as(scorer, metric, "ex_1", &json!({"answer": 41})).await
}

#[tokio::test]
async fn a_program_sees_the_whole_trial_and_gives_a_score_with_feedback() {
    let sources = [
        "const half = (x) => x / 2;\n\
         function score({input, output, expected, outcome}) {\n\
           const {type, code, turns, cost, gates} = outcome;\n\
           const seen = [input.question, output.answer, expected.answer, type, code, turns, cost, gates];\n\
           console.log('a line of its own');\n\
           return {score: half(0.5), feedback: JSON.stringify(seen)};\n\
         }",
        "import json\n\
         def score(case):\n    \
             outcome = case['outcome']\n    \
             print('a line of its own')\n    \
             seen = [case['input']['question'], case['output']['answer'], case['expected']['answer']]\n    \
             seen += [outcome[key] for key in ['type', 'code', 'turns', 'cost', 'gates']]\n    \
             return {'score': 0.25, 'feedback': json.dumps(seen)}\n",
    ];
    let seen = json!(["6 x 7?", 41, 42, "Success", "WA-EXEC-S-001", 2, 1_500, ["read"]]);
    let scorer = machine();
    for (language, source) in LANGUAGES.into_iter().zip(sources) {
        let metric = program(language, source);
        scorer.check(&metric, "mine").await.unwrap_or_else(|refusal| panic!("{language}: {refusal:?}"));
        let found = scored(&scorer, &metric).await;
        assert_eq!(found.micro(), Some(250_000), "{language}: {found:?}");
        let told: Value = serde_json::from_str(found.feedback()).unwrap();
        assert_eq!(told, seen, "{language}");
    }
}

#[tokio::test]
async fn the_same_program_gives_the_same_score_on_every_machine() {
    let sources = [
        "function score() { return {score: Math.random(), feedback: [Date.now(), new Date().getFullYear()].join()} }",
        "def score(case):\n    return {'score': rand(), 'feedback': str(int(now()))}\n",
    ];
    for (language, source) in LANGUAGES.into_iter().zip(sources) {
        let metric = program(language, source);
        let mut scores = Vec::new();
        for _ in 0..3 {
            let scorer = machine();
            let (one, other) = (
                scored_as(&scorer, &metric, "ex_1", &json!({})).await,
                scored_as(&scorer, &metric, "ex_2", &json!({})).await,
            );
            let clock = if language == "javascript" { "0,1970" } else { "0" };
            assert_eq!((one.feedback(), other.feedback()), (clock, clock), "{language}: the clock stands at 0");
            scores.push((one.micro().unwrap(), other.micro().unwrap()));
        }
        assert!(scores.iter().all(|both| *both == scores[0]), "{language}: {scores:?}");
        assert_ne!(scores[0].0, scores[0].1, "{language}: each example has its own seed");
        // Another metric has another seed.
        let other = program(language, &format!("{source}\n"));
        assert_ne!(scored_as(&machine(), &other, "ex_1", &json!({})).await.micro(), Some(scores[0].0), "{language}");
    }
}

#[tokio::test]
async fn a_program_that_fails_leaves_the_output_unscored() {
    let javascript = [
        "function score() { throw new Error('my own fault') }",
        "function score() { for (;;); }",
        "function score() { const all = []; for (;;) all.push({x: [1, 2, 3]}) }",
        "function score() { return score() + 1 }",
        "function score() { return 1 }",
        "function score() { return {score: 1.5, feedback: ''} }",
        "function score() { return {score: -0.1, feedback: ''} }",
        "function score() { return {score: NaN, feedback: ''} }",
        "function score() { return {score: '1', feedback: ''} }",
        "function score() { return {score: 1, feedback: 7} }",
        "function score() { return {score: 1, feedback: '', more: 1} }",
        "function score() { return null }",
        "function score() {}",
        "async function score() { return {score: 1, feedback: ''} }",
        "const other = 1",
        "function score( {",
        "function score() { console.log('x'.repeat(100000)); return {score: 1} }",
    ];
    let python = [
        "def score(case):\n    raise ValueError('my own fault')",
        "def score(case):\n    while True: pass",
        "def score(case):\n    return [0] * 10 ** 10",
        "def score(case):\n    return score(case)",
        "def score(case):\n    return 1",
        "def score(case):\n    return {'score': 1.5, 'feedback': ''}",
        "def score(case):\n    return {'score': True, 'feedback': ''}",
        "def score(case):\n    return {'score': float('nan'), 'feedback': ''}",
        "def score(case):\n    return {'score': 1, 'feedback': 7}",
        "def score(case):\n    return None",
        "other = 1",
        "def score(case:",
    ];
    let scorer = machine();
    for (language, sources) in [("javascript", javascript.as_slice()), ("python", python.as_slice())] {
        for source in sources {
            let found = scored(&scorer, &program(language, source)).await;
            assert_eq!(found.unscored_reason(), Some(Unscored::MetricFailed), "{source}: {found:?}");
            assert!(!found.feedback().is_empty(), "{source}");
        }
        // The sandbox of the next program is not affected.
        let fine = if language == "javascript" {
            "function score() { return {score: 1} }"
        } else {
            "def score(case):\n    return {'score': 1}"
        };
        assert_eq!(scored(&scorer, &program(language, fine)).await.micro(), Some(1_000_000), "{language}");
    }
    // A program that throws says what and where, with the reply for `metric try`.
    let Scoring::Unscored(unscored) = scored(&scorer, &program("javascript", javascript[0])).await else {
        panic!("it throws");
    };
    assert_eq!(unscored.detail, "the metric's program: Error: my own fault (line 1)");
    assert_code(&replied(*unscored.refusal.unwrap()).await, codes::CODE_THREW);
}

#[tokio::test]
async fn a_program_reaches_no_gate_no_file_and_no_network() {
    let javascript = [
        "done",
        "submit_answer",
        "read",
        "fetch",
        "call_agent",
        "require",
        "process",
        "std",
        "os",
        "XMLHttpRequest",
        "Worker",
    ];
    let names = javascript.map(|name| format!("typeof {name}")).join(", ");
    let source = format!("function score() {{ return {{score: 0, feedback: [{names}].join()}} }}");
    let scorer = machine();
    let found = scored(&scorer, &program("javascript", &source)).await;
    assert_eq!(found.feedback(), ["undefined"; 11].join(","), "{found:?}");
    for body in [
        "open('/etc/passwd').read()",
        "__import__('os').listdir('/')",
        "done(1)",
        "read('x')",
        "call_agent('x')",
        "fetch('http://127.0.0.1')",
    ] {
        let found = scored(&scorer, &program("python", &format!("def score(case):\n    return {body}"))).await;
        assert_eq!(found.unscored_reason(), Some(Unscored::MetricFailed), "{body}: {found:?}");
    }
    for module in ["os", "socket", "subprocess", "pathlib", "urllib.request"] {
        let source = format!("import {module}\ndef score(case):\n    return {{'score': 1}}");
        let found = scored(&scorer, &program("python", &source)).await;
        // A module that is only a name reaches nothing either: its functions are missing.
        let reaches = format!("import {module}\ndef score(case):\n    {module}.system('x')\n    return {{'score': 1}}");
        let tried = scored(&scorer, &program("python", &reaches)).await;
        assert_eq!(tried.unscored_reason(), Some(Unscored::MetricFailed), "{module}: {found:?}, {tried:?}");
    }
}

#[tokio::test]
async fn source_that_does_not_compile_or_has_no_score_is_refused_before_a_job() {
    let scorer = machine();
    for (language, source, says) in [
        ("javascript", "function score( {", "line 1"),
        ("javascript", "function scored() {}", "there is no function score"),
        ("javascript", "const score = 3", "there is no function score"),
        ("python", "def score(case:\n    pass", "metric mine"),
        ("python", "def scored(case):\n    return 1", "score"),
        ("python", "score = 3", "score is not a function"),
    ] {
        // Also as a part of another metric.
        let inner = json!({"type": "program.v1", "language": language, "source": source});
        let nested = metric(json!({"type": "composite.v1", "parts": [{"metric": inner}]}));
        for metric in [program(language, source), nested] {
            let refusal = scorer.check(&metric, "mine").await.unwrap_err();
            let reply = replied(refusal).await;
            assert_code(&reply, codes::METRIC_INVALID);
            assert!(reply.message().contains(says), "{source}: {}", reply.message());
        }
    }
}

fn script(folder: &Path, name: &str, text: &str) {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn command(argv: &[&str], timeout: u64) -> Metric {
    metric(json!({"type": "command.v1", "argv": argv, "timeout": timeout}))
}

#[tokio::test]
async fn a_command_scores_in_a_cage_from_which_nothing_is_reached() {
    let folder = tempfile::tempdir().unwrap();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret"), "hidden").unwrap();
    let secret = outside.path().join("secret").display().to_string();
    let scorer = MetricScorer::new(MetricSandboxes::default(), CommandCage::in_folder(folder.path()));
    script(
        folder.path(),
        "score.sh",
        "#!/bin/sh\ncase $(cat) in *'\"answer\":41'*) echo '{\"score\": 0.5, \"feedback\": \"one short\"}' ;; esac\n",
    );
    let found = scored(&scorer, &command(&["./score.sh"], 10)).await;
    assert_eq!((found.micro(), found.feedback()), (Some(500_000), "one short"), "{found:?}");
    // It sees neither other files nor the environment, writes nothing and has no network.
    script(
        folder.path(),
        "reach.sh",
        &format!(
            "#!/bin/sh\ncat >/dev/null\nseen=\n\
             [ -e '{secret}' ] && seen=\"$seen file\"\n\
             echo x > here 2>/dev/null && seen=\"$seen write\"\n\
             [ -n \"$HOME\" ] && seen=\"$seen environment\"\n\
             [ \"$(grep -c : /proc/net/dev)\" -gt 1 ] && seen=\"$seen network\"\n\
             printf '{{\"score\": 0, \"feedback\": \"reached:%s\"}}' \"$seen\"\n"
        ),
    );
    let found = scored(&scorer, &command(&["./reach.sh"], 10)).await;
    assert_eq!(found.feedback(), "reached:", "{found:?}");
    assert!(!folder.path().join("here").exists());
}

#[tokio::test]
async fn a_command_that_fails_leaves_the_output_unscored() {
    let folder = tempfile::tempdir().unwrap();
    let cage = || CommandCage::in_folder(folder.path());
    let scorer = |cage| MetricScorer::new(MetricSandboxes::default(), cage);
    script(folder.path(), "slow.sh", "#!/bin/sh\nsleep 60\n");
    script(folder.path(), "sad.sh", "#!/bin/sh\necho 'no such model' >&2\nexit 3\n");
    script(folder.path(), "odd.sh", "#!/bin/sh\necho 'score: 1'\n");
    script(folder.path(), "loud.sh", "#!/bin/sh\nhead -c 100000 /dev/zero\n");
    for (argv, says) in [
        (&["./slow.sh"][..], "it took more than 1 s"),
        (&["./sad.sh"][..], "no such model"),
        (&["./odd.sh"][..], "the metric gave no JSON"),
        (&["./loud.sh"][..], "printed more than"),
        (&["./missing.sh"][..], "the metric's command"),
    ] {
        let found = scored(&scorer(cage()), &command(argv, 1)).await;
        assert_eq!(found.unscored_reason(), Some(Unscored::MetricFailed), "{argv:?}: {found:?}");
        assert!(found.feedback().contains(says), "{argv:?}: {found:?}");
    }
    // Without bubblewrap nothing runs bare.
    script(folder.path(), "mark.sh", "#!/bin/sh\ntouch ran\necho '{\"score\": 1}'\n");
    let found = scored(&scorer(cage().bubblewrap("/no/such/bwrap")), &command(&["./mark.sh"], 10)).await;
    assert!(found.feedback().contains("need bubblewrap"), "{found:?}");
    assert!(!folder.path().join("ran").exists());
    assert!(!command(&["./mark.sh"], 10).is_reproducible());
    let nested = json!({"type": "composite.v1", "parts": [{"metric": {"type": "command.v1", "argv": ["./mark.sh"]}}]});
    assert!(!metric(nested).is_reproducible() && metric(json!({"type": "exact.v1"})).is_reproducible());
}
