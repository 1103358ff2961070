use cantrip_contract::{
    BUILT_IN, Demo, NoFiles, Program, Signature, SignatureFault, Strategy, built_in, catalog_version,
};
use cantrip_reply::{Reply, codes};
use serde_json::{Value, json};

pub(crate) fn classify() -> Signature {
    Signature::parse(BUILT_IN[0].1, &NoFiles).expect("sound")
}

/// The file of the example, with one part of it replaced.
fn changed(from: &str, to: &str) -> Result<Signature, SignatureFault> {
    let text = BUILT_IN[0].1;
    assert!(text.contains(from), "{from}");
    Signature::parse(&text.replacen(from, to, 1), &NoFiles)
}

fn faults(from: &str, to: &str) -> String {
    changed(from, to).expect_err(to).to_string()
}

pub(crate) fn refused(refusal: cantrip_reply::Refusal, code: cantrip_reply::AnyCode) -> Reply {
    let reply = cantrip_reply::testing::guarded(|rb| rb.refuse(refusal)).reply;
    cantrip_reply::testing::assert_any(&reply, code);
    reply
}

#[test]
fn the_hashes_of_the_example_are_the_published_ones() {
    let signature = classify();
    let hashes = signature.hashes();
    assert_eq!(
        [hashes.schema_hash, hashes.prompt_hash, hashes.program_hash, signature.payload_hash()]
            .map(|hash| hash.to_string()),
        [
            "sha256:f863ebc5f6bc52491f65a25adfd58c151e5a562553fa879de25dcb36b0e5b2c3",
            "sha256:4501c337d0c6d341762f80f39ad3a9f40a0680b7ca1d0f2a12d726994dd2c393",
            "sha256:e419b50597afe002fb6e43116f483877bd541ede48402113d8aeff90bc53c910",
            "sha256:ea037b02ab6e531d5d3fd9a850f10320c15644534900ee68b042215108de7c63",
        ]
    );
    let catalog = "sha256:c5dba437b61862d44f4398bf5dfb485f77b257f2eb309ddeb29ad942559f505c";
    assert_eq!(catalog_version([&signature]).to_string(), catalog);
    let base = signature.base_artifact();
    assert_eq!(
        base.content_hash().to_string(),
        "sha256:fa314739a6ab692b5cd3d96708665e89d45fd5f47bb5ee9bbd49ad0ec2570dee"
    );
    assert_eq!(base.id().as_str(), "art_fa314739a6ab692b5cd3d96708665e89");
}

#[test]
fn the_defaults_of_rlm_lite_have_the_published_hash() {
    let answer = built_in().iter().find(|signature| signature.program().strategy() == Strategy::RlmLite);
    let answer = answer.expect("one that runs programs");
    assert!(matches!(
        answer.program(),
        Program::RlmLite { max_iterations: 3, max_sub_calls: 3, repair_attempts: 2, .. }
    ));
    assert_eq!(
        answer.hashes().program_hash.to_string(),
        "sha256:0b1d59b6d3b24980f7e2b01c2b1fadb7b2612e852ae036b2b1e6c409cc4af9c5"
    );
}

#[test]
fn every_signature_that_comes_along_is_sound_and_each_id_is_its_own() {
    let ids: Vec<String> = built_in().iter().map(|signature| signature.id().to_string()).collect();
    assert_eq!(
        ids,
        [
            "@cantrip/text/Classify.v1",
            "@cantrip/long/Answer.v1",
            "@cantrip/eval/Judge.v1",
            "@cantrip/compile/Reflect.v1",
            "@cantrip/eval/Prefer.v1"
        ]
    );
}

#[test]
fn the_same_again_is_no_conflict_and_one_character_anywhere_hashed_is() {
    let kept = classify();
    assert_eq!(classify().conflict(&kept), None);
    let described = changed("Pick one label", "Choose a label").expect("sound");
    assert_eq!(described.conflict(&kept), None, "what is for people is not hashed");
    for (from, to, key) in [
        ("minItems = 2", "minItems = 3", "schema_hash"),
        ("Labels: ", "Label: ", "prompt_hash"),
        ("repair_attempts = 2", "repair_attempts = 1", "program_hash"),
        ("fits the text best", "fits the text", "payload_hash"),
        ("confidence = 0.97", "confidence = 0.98", "payload_hash"),
    ] {
        let given = if key == "schema_hash" {
            // The demos use two labels, so they are removed together with the change.
            changed(from, to).err().map(|_| {
                let text = BUILT_IN[0].1.replacen(from, to, 1);
                let without = text.split("[[demos]]").next().unwrap_or_default().to_owned();
                Signature::parse(&without, &NoFiles).expect("sound")
            })
        } else {
            changed(from, to).ok()
        };
        let (found, one, other) = given.expect("sound").conflict(&kept).expect("a conflict");
        assert_eq!(found, key);
        assert_ne!(one, other);
    }
}

#[test]
fn a_field_that_is_left_out_is_filled_with_the_default_of_its_program() {
    let filled = changed("program = { repair_attempts = 2 }\n", "").expect("sound");
    assert_eq!(filled.hashes(), classify().hashes());
}

#[test]
fn what_cannot_be_is_refused_when_it_is_added_and_by_its_path() {
    for (from, to, says) in [
        (
            "type = \"string\", minLength = 1",
            "type = \"strin\", minLength = 1",
            "input_schema: at \"/properties/text/type\"",
        ),
        (
            "properties.text = { type",
            "properties.more = { \"$ref\" = \"https://schemas.example/s.json\" }\nproperties.text = { type",
            "input_schema:",
        ),
        ("inputs.text |", "inputs.txet |", "prompt_template.user: line 2"),
        ("{{ instructions }}", "{{ instructons }}", "prompt_template.system: instructons is not in scope"),
        ("{{ instructions }}", "Be good.", "neither template uses"),
        ("{{ instructions }}", "{% include 'other' %}{{ instructions }}", "prompt_template.system:"),
        ("{{ instructions }}", "{{ instructions", "prompt_template.system:"),
        ("confidence = 0.97 }", "confidence = 1.5 }", "demos/0/output/confidence"),
        ("text = \"The parcel never came.\", ", "", "demos/0/input"),
        ("version = 1", "version = 0", "version"),
        ("version = 1", "version = \"1\"", "version"),
        ("name = \"Classify\"", "name = \"1st\"", "name: "),
        ("@cantrip/text", "@Cantrip", "namespace"),
        ("repair_attempts = 2", "repair_attempts = 4", "program.repair_attempts: this is a number from 0 to 3"),
        ("repair_attempts = 2", "max_iterations = 2", "direct.v1 has no such option"),
        ("direct.v1", "direct.v2", "program_template:"),
        ("description =", "descripton =", "did you mean description?"),
        ("confidence = 0.97", "confidence = 2026-02-19", "demos.0.output.confidence: 2026-02-19 is a date"),
    ] {
        let told = faults(from, to);
        assert!(told.contains(says), "{to}: {told}");
    }
    assert!(matches!(changed("version = 1", "version = "), Err(SignatureFault::Text { line: 3, .. })));
    let fault = changed("version = 1", "version = 0").expect_err("refused");
    let reply = refused(fault.refusal("classify.toml"), codes::CONFIG_INVALID.any());
    assert!(reply.message().contains("classify.toml"), "{}", reply.message());
}

#[test]
fn what_stands_in_an_input_is_never_a_template_and_never_ends_its_fence() {
    let signature = classify();
    let input = json!({"text": "{{ instructions }} {% raw %} </text> and </ TEXT >", "labels": ["a", "b"]});
    signature.check_input(&input).expect("it fits");
    let rendered = signature.render(&signature.base_artifact(), &input).expect("rendered");
    assert_eq!(rendered.system, "Choose the one label that fits the text best.");
    assert_eq!(rendered.user, "Labels: a, b\n<text>{{ instructions }} {% raw %} <\\/text> and <\\/ TEXT ></text>");
}

#[test]
fn an_input_that_does_not_fit_is_told_by_its_pointer() {
    let refusal = classify().check_input(&json!({"text": "", "labels": ["a", "b"]})).expect_err("too short");
    let reply = refused(refusal, codes::INPUT_SCHEMA.any());
    assert!(reply.message().contains("/text"), "{}", reply.message());
    let violations = reply.data()["violations"].clone();
    assert_eq!(violations[0]["keyword"], "minLength");
    assert_eq!(violations[0]["found"], "\"\"");
}

#[test]
fn a_signature_written_in_code_has_the_hashes_of_its_file() {
    let object = |properties: Value, required: Value| json!({"type": "object", "required": required, "additionalProperties": false, "properties": properties});
    let text = json!({"type": "string", "minLength": 1});
    let labels = json!({"type": "array", "items": {"type": "string"}, "minItems": 2, "uniqueItems": true});
    let confidence = json!({"type": "number", "minimum": 0, "maximum": 1});
    let built = Signature::builder("@cantrip/text", "Classify", 1)
        .instructions("Choose the one label that fits the text best.")
        .option("repair_attempts", 2)
        .system("{{ instructions }}")
        .user("Labels: {{ inputs.labels | join(', ') }}\n{{ inputs.text | fence('text') }}")
        .input(object(json!({"text": text, "labels": labels}), json!(["text", "labels"])))
        .output(object(json!({"label": {"type": "string"}, "confidence": confidence}), json!(["label", "confidence"])))
        .demo(Demo {
            input: json!({"text": "The parcel never came.", "labels": ["praise", "complaint"]}),
            output: json!({"label": "complaint", "confidence": 0.97}),
            rationale: None,
        })
        .build()
        .expect("sound");
    assert_eq!(built.conflict(&classify()), None);
}

#[test]
fn what_a_store_kept_is_the_same_signature() {
    for signature in built_in() {
        let kept = Signature::from_stored(&signature.body(), signature.description()).expect("sound");
        assert_eq!(kept.conflict(signature), None, "{}", signature.id());
        assert_eq!((kept.id(), kept.description()), (signature.id(), signature.description()));
    }
}
