//! The bounds of this crate.

cantrip::canon::limits! {
    /// The maximum size of a text that a search tries: instructions, a system prompt, the description of a gate.
    COMPILE_TEXT_BYTES_MAX: usize = 16 << 10, "bytes";
    /// The maximum number of demos of a candidate.
    COMPILE_DEMOS_MAX: usize = 16, "demos";
    /// The maximum number of candidates of a job.
    COMPILE_CANDIDATES_MAX: usize = 1_000, "candidates";
    /// The maximum number of values of the slot that is chosen from a list.
    COMPILE_CHOICES_MAX: usize = 16, "values";
    /// The maximum number of texts that a job is given.
    COMPILE_TEXTS_MAX: usize = 500, "texts";
    /// The maximum length of a hint about a field of the output.
    HINT_CHARS_MAX: usize = 200, "characters";
    /// The maximum depth of a field that a hint can be about.
    HINT_POINTER_DEPTH_MAX: usize = 8, "levels";
    /// The default number of sets of demos that `bootstrap_demos.v1` tries beside the base.
    BOOTSTRAP_CANDIDATES: u64 = 8, "candidates";
    /// The default number of demos of a set that are answers of the teacher.
    BOOTSTRAP_DEMOS: u64 = 4, "demos";
    /// The default number of demos of a set that are examples with their expected output.
    BOOTSTRAP_LABELLED: u64 = 4, "demos";
    /// The default score from which an answer of the teacher is a demo.
    BOOTSTRAP_THRESHOLD_MICRO: u64 = 1_000_000, "millionths";
    /// The default number of texts that `instruction_grid.v1` lets a model propose.
    GRID_PROPOSALS: u64 = 8, "proposals";
    /// The maximum number of texts that `instruction_grid.v1` lets a model propose.
    GRID_PROPOSALS_MAX: u64 = 64, "proposals";
    /// The number of train examples that a proposal without trials is made from.
    GRID_CASES: usize = 8, "examples";
    /// The default number of sets of demos that `instruction_grid.v1` crosses its texts with.
    GRID_CROSS: u64 = 1, "sets";
    /// The maximum number of combinations that `instruction_grid.v1` tries on all of holdout. More climb by rungs.
    GRID_COMBINATIONS_WHOLE: usize = 64, "combinations";
    /// The default number of texts of `mipro_lite.v1`, with the base's.
    MIPRO_INSTRUCTIONS: u64 = 6, "texts";
    /// The maximum number of texts of `mipro_lite.v1`.
    MIPRO_INSTRUCTIONS_MAX: u64 = 64, "texts";
    /// The default number of sets of demos of `mipro_lite.v1`, with the base's own.
    MIPRO_DEMO_SETS: u64 = 8, "sets";
    /// The maximum number of sets of demos of `mipro_lite.v1`.
    MIPRO_DEMO_SETS_MAX: u64 = 64, "sets";
    /// The default number of holdout examples of a trial of `mipro_lite.v1`.
    MIPRO_MINIBATCH: u64 = 25, "examples";
    /// The maximum number of holdout examples of a trial of `mipro_lite.v1`.
    MIPRO_MINIBATCH_MAX: u64 = 10_000, "examples";
    /// The default number of trials of `mipro_lite.v1` after which its best combination is tried on all of holdout.
    MIPRO_FULL_EVERY: u64 = 5, "trials";
    /// The maximum number of combinations that `mipro_lite.v1` tries.
    MIPRO_TRIALS_MAX: u64 = 900, "trials";
    /// The minimum number of first trials of `mipro_lite.v1`, which take the next of its grid.
    MIPRO_FIRST_TRIALS_MIN: u64 = 4, "trials";
    /// Each of so many trials of `mipro_lite.v1` takes the next of its grid.
    MIPRO_GRID_EVERY: u64 = 4, "trials";
    /// The minimum number of combinations that `mipro_lite.v1` calls good.
    MIPRO_GOOD_MIN: usize = 2, "combinations";
    /// The default number of train examples of a minibatch of `gepa.v1`.
    GEPA_MINIBATCH: u64 = 3, "examples";
    /// The maximum number of train examples of a minibatch of `gepa.v1`: a reflection sees all of them.
    GEPA_MINIBATCH_MAX: u64 = 32, "examples";
    /// The default number of iterations of `gepa.v1` in a row that accept nothing before it ends.
    GEPA_PATIENCE: u64 = 20, "iterations";
    /// The default number of times that `gepa.v1` tries to merge two candidates.
    GEPA_MERGES: u64 = 5, "merges";
    /// The maximum number of times that `gepa.v1` can be told to try a merge.
    GEPA_MERGES_MAX: u64 = 100, "merges";
    /// The default number of iterations of `gepa.v1`.
    GEPA_ITERATIONS: u64 = 100, "iterations";
    /// The maximum number of iterations that `gepa.v1` can be told to make.
    GEPA_ITERATIONS_MAX: u64 = 1_000, "iterations";
    /// The default number of proposals of one iteration of `gepa.v1`.
    GEPA_PROPOSALS: u64 = 1, "proposals";
    /// The maximum number of proposals of one iteration of `gepa.v1`.
    GEPA_PROPOSALS_MAX: u64 = 8, "proposals";
    /// The number of holdout examples on which a merge is compared with its parents first.
    GEPA_MERGE_EXAMPLES: usize = 5, "examples";
    /// The maximum number of demos that `gepa.v1` draws to find one that makes a new candidate.
    GEPA_DEMO_DRAWS_MAX: usize = 16, "demos";
    /// The default number of trials of a job with `gepa.v1`.
    GEPA_CALLS: u64 = 1_000, "trials";
    /// The number of iterations that the trials of a job with `gepa.v1` must pay for at least.
    GEPA_FLOOR_ITERATIONS: u64 = 3, "iterations";
    /// The share of a candidate's trials on holdout that may have failed before it cannot win.
    HOLDOUT_FAILED_PERCENT_MAX: u64 = 5, "percent";
}
