//! The bounds of this crate: what one request may be made to wait for, and what one answer may make a process hold.

cantrip_canon::limits! {
    /// The maximum size of a serialized message that is kept for the next request. A longer one is serialized each
    /// time.
    WRITTEN_BYTES_KEPT_MAX: usize = 256 << 10, "bytes";
    /// The default number of retries after the first attempt.
    RETRIES_MAX: u32 = 5, "attempts";
    /// The maximum of the first random delay before a retry. It doubles with each retry.
    RETRY_BASE_MS: u64 = 1_000, "ms";
    /// The maximum delay before a retry, unless the provider asks for a longer one.
    RETRY_CAP_MS: u64 = 60_000, "ms";
    /// The maximum delay that a provider may ask for. A provider that asks for more counts as down: there are no more
    /// retries, and the run can be parked.
    RETRY_AFTER_MS_MAX: u64 = 600_000, "ms";
    /// The maximum number of reminders when a required call is missing from an answer. After that the cast ends.
    DEMANDS_MAX: u32 = 2, "prompts";
    /// The default maximum length of one answer.
    OUTPUT_TOKENS_DEFAULT: u32 = 8_192, "tokens";
    /// If a model has no maximum answer length, an answer may use the window divided by this.
    OUTPUT_SHARE_OF_WINDOW: u64 = 4, "parts";
    /// The thinking budget for low effort, for models that take a number of tokens.
    THINKING_TOKENS_LOW: u32 = 2_048, "tokens";
    /// The thinking budget for medium effort.
    THINKING_TOKENS_MEDIUM: u32 = 8_192, "tokens";
    /// The thinking budget for high effort.
    THINKING_TOKENS_HIGH: u32 = 24_576, "tokens";
    /// The minimum thinking budget of models that take a number of tokens.
    THINKING_TOKENS_MIN: u32 = 1_024, "tokens";
    /// The default window of a model behind Ollama. With its own default, Ollama would silently truncate the messages.
    OLLAMA_WINDOW_DEFAULT: u64 = 16_384, "tokens";
    /// The maximum window that is assumed of a model behind Ollama if requests cannot set it. It is Ollama's default on
    /// most machines.
    OLLAMA_CHAT_WINDOW_MAX: u64 = 4_096, "tokens";
    /// The assumed window of a model that is in no table and whose server does not report one.
    WINDOW_TOKENS_ASSUMED: u64 = 8_192, "tokens";
    /// The timeout for asking a server for the window of a model, before an entity is created.
    WINDOW_ASK_MS_MAX: u64 = 2_000, "ms";
    /// The maximum size of the response to that request. Gateways have long lists.
    WINDOW_ASK_BYTES_MAX: usize = 8 << 20, "bytes";
    /// The time for which a reported window is cached. After that the next new entity asks again.
    WINDOW_KEPT_MS: u64 = 60_000, "ms";
    /// The maximum total size of text, thinking and arguments in one answer. A longer answer fails the attempt, which
    /// is not retried.
    ANSWER_BYTES_MAX: usize = 8 << 20, "bytes";
    /// The maximum number of calls in one answer. More calls fail the attempt.
    ANSWER_CALLS_MAX: usize = 1_024, "calls";
    /// The maximum size of a provider's error message in a failure. The rest is cut.
    DETAIL_BYTES_MAX: usize = 2_048, "bytes";
    /// The maximum length of a crystal's name.
    NAME_BYTES_MAX: usize = 1_024, "bytes";
    /// The maximum length of an endpoint's name.
    ENDPOINT_NAME_BYTES_MAX: usize = 64, "bytes";
    /// The maximum size of a script or program file.
    SCRIPT_BYTES_MAX: usize = 16 << 20, "bytes";
    /// The maximum nesting depth of a script.
    SCRIPT_DEPTH_MAX: usize = 64, "levels";
    /// The maximum number of values in a script. Values that an alias repeats count each time.
    SCRIPT_NODES_MAX: usize = 1 << 20, "values";
    /// The maximum size of a table of models and prices.
    PROFILES_BYTES_MAX: usize = 1 << 20, "bytes";
    /// The timeout for downloading a table of models.
    TABLE_MS_MAX: u64 = 30_000, "ms";
    /// The maximum number of requests that a scripted crystal remembers. The oldest one is dropped first.
    INPUTS_RECORDED_MAX: usize = 1 << 16, "requests";
    /// The maximum number of concurrent requests with one key to one address. Further requests wait.
    REQUESTS_AT_ONCE_MAX: usize = 64, "requests";
    /// The timeout for connecting to a provider.
    CONNECT_MS_MAX: u64 = 10_000, "ms";
    /// The timeout for a provider that sends nothing, before or during its answer. Models may think for minutes.
    SILENCE_MS_MAX: u64 = 300_000, "ms";
    /// The maximum size of one event of a provider's stream, or of an answer without streaming. JSON may escape a byte
    /// as six.
    FRAME_BYTES_MAX: usize = 48 << 20, "bytes";
    /// The maximum size that is read of an error response.
    ERROR_BODY_BYTES_MAX: usize = 64 << 10, "bytes";
    /// The timeout for a server on this machine to list its models, if no crystal is named.
    NEARBY_MS_MAX: u64 = 500, "ms";
    /// The timeout for a server to list its models, if a user asks which models can be reached.
    SERVER_LIST_MS_MAX: u64 = 3_000, "ms";
    /// The maximum number of models that are listed for one server. Further models are left out.
    LISTED_MODELS_MAX: usize = 1_000, "models";
    /// The maximum size of a list of models.
    NEARBY_BYTES_MAX: usize = 1 << 20, "bytes";
}

const _: () = assert!(RETRY_BASE_MS <= RETRY_CAP_MS && RETRY_CAP_MS <= RETRY_AFTER_MS_MAX);
const _: () = assert!(ANSWER_BYTES_MAX <= cantrip_stream::limits::ITEM_TEXT_BYTES_MAX);
const _: () = assert!(ANSWER_CALLS_MAX < cantrip_stream::limits::TURN_ITEMS_MAX);
