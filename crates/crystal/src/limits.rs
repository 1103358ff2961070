//! The bounds of this room: what one request may be made to wait for, and what one answer may make a process hold.

cantrip_canon::limits! {
    /// A message as a wire wrote it, which is kept for the next request; a longer one is written anew each time.
    WRITTEN_BYTES_KEPT_MAX: usize = 256 << 10, "bytes";
    /// Attempts after the first one, unless the policy says otherwise.
    RETRIES_MAX: u32 = 5, "attempts";
    /// What the first wait is drawn from; each later one from twice as much.
    RETRY_BASE_MS: u64 = 1_000, "ms";
    /// What no wait is drawn beyond.
    RETRY_CAP_MS: u64 = 60_000, "ms";
    /// A provider that asks to wait longer than this is down: the retries end there and the run can be parked.
    RETRY_AFTER_MS_MAX: u64 = 600_000, "ms";
    /// Prompts for a call that came without one, after the first answer; then the cast ends.
    DEMANDS_MAX: u32 = 2, "prompts";
    /// Tokens of one answer, unless the call asks for another number.
    OUTPUT_TOKENS_DEFAULT: u32 = 8_192, "tokens";
    /// Of a window whose model has no bound of its own for answers, one part in so many is the answer's.
    OUTPUT_SHARE_OF_WINDOW: u64 = 4, "parts";
    /// Tokens of thought of little effort, for models that take a number.
    THINKING_TOKENS_LOW: u32 = 2_048, "tokens";
    /// The same of middling effort.
    THINKING_TOKENS_MEDIUM: u32 = 8_192, "tokens";
    /// The same of much effort.
    THINKING_TOKENS_HIGH: u32 = 24_576, "tokens";
    /// The least that a model which takes a number of thought tokens can be given.
    THINKING_TOKENS_MIN: u32 = 1_024, "tokens";
    /// The window that a model behind Ollama is given where nobody says another: what it does without being told cuts a
    /// list without a word.
    OLLAMA_WINDOW_DEFAULT: u64 = 16_384, "tokens";
    /// The window that a model behind Ollama is taken to have at most where no request can say another, which it has on
    /// most machines.
    OLLAMA_CHAT_WINDOW_MAX: u64 = 4_096, "tokens";
    /// The window that is assumed of a model which no table describes and whose server does not tell.
    WINDOW_TOKENS_ASSUMED: u64 = 8_192, "tokens";
    /// How long a server may take to tell the window of a model, before an entity is made.
    WINDOW_ASK_MS_MAX: u64 = 2_000, "ms";
    /// What is read of that. Lists of gateways are long.
    WINDOW_ASK_BYTES_MAX: usize = 8 << 20, "bytes";
    /// For how long it counts what a server told; then an entity that is made has it asked again.
    WINDOW_KEPT_MS: u64 = 60_000, "ms";
    /// Text, thinking and arguments of one answer together. What is longer fails the attempt and is not asked for again.
    ANSWER_BYTES_MAX: usize = 8 << 20, "bytes";
    /// Calls of one answer; one more fails the attempt.
    ANSWER_CALLS_MAX: usize = 1_024, "calls";
    /// A provider's own words in a failure; the rest is cut.
    DETAIL_BYTES_MAX: usize = 2_048, "bytes";
    /// The name of a crystal.
    NAME_BYTES_MAX: usize = 1_024, "bytes";
    /// The name of an endpoint.
    ENDPOINT_NAME_BYTES_MAX: usize = 64, "bytes";
    /// The file of a script or a program.
    SCRIPT_BYTES_MAX: usize = 16 << 20, "bytes";
    /// Nesting of a script.
    SCRIPT_DEPTH_MAX: usize = 64, "levels";
    /// Values of a script, those that an alias repeats counted each time.
    SCRIPT_NODES_MAX: usize = 1 << 20, "values";
    /// A table of models and prices.
    PROFILES_BYTES_MAX: usize = 1 << 20, "bytes";
    /// Requests that a scripted crystal remembers; the oldest is forgotten.
    INPUTS_RECORDED_MAX: usize = 1 << 16, "requests";
    /// Requests on their way at once with one key to one address; the next waits for a place.
    REQUESTS_AT_ONCE_MAX: usize = 64, "requests";
    /// How long a provider may take to be connected to.
    CONNECT_MS_MAX: u64 = 10_000, "ms";
    /// How long a provider may say nothing, before or within its answer; models think for minutes.
    SILENCE_MS_MAX: u64 = 300_000, "ms";
    /// One event of a provider's stream, or an answer that comes in one piece. JSON may write a byte as six.
    FRAME_BYTES_MAX: usize = 48 << 20, "bytes";
    /// What is read of an answer that tells of an error.
    ERROR_BODY_BYTES_MAX: usize = 64 << 10, "bytes";
    /// How long a server on this machine may take to say which models it has, where nobody named a crystal.
    NEARBY_MS_MAX: u64 = 500, "ms";
    /// How long a server may take to list its models where a person asks what can be reached.
    SERVER_LIST_MS_MAX: u64 = 3_000, "ms";
    /// Models of one server that are told of; the others are left out.
    LISTED_MODELS_MAX: usize = 1_000, "models";
    /// What is read of a list of models.
    NEARBY_BYTES_MAX: usize = 1 << 20, "bytes";
}

const _: () = assert!(RETRY_BASE_MS <= RETRY_CAP_MS && RETRY_CAP_MS <= RETRY_AFTER_MS_MAX);
const _: () = assert!(ANSWER_BYTES_MAX <= cantrip_stream::limits::ITEM_TEXT_BYTES_MAX);
const _: () = assert!(ANSWER_CALLS_MAX < cantrip_stream::limits::TURN_ITEMS_MAX);
