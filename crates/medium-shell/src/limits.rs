//! The limits of the shell and its cage. The defaults of its bounds are in [`cantrip_circle::limits`].

cantrip_canon::limits! {
    /// The size of the private `/tmp` of a shell, and of its shared memory.
    SHELL_TMP_BYTES: u64 = 256 << 20, "bytes";
    /// The size of the private `/etc` of a shell.
    SHELL_ETC_BYTES: u64 = 1 << 20, "bytes";
    /// The maximum number of open files of one process of a shell.
    SHELL_FILES_OPEN: u64 = 1_024, "files";
    /// The output of a shell command that is shown, half from its beginning and half from its end.
    SHELL_OUTPUT_SHOWN_BYTES: usize = 32 << 10, "bytes";
    /// The maximum number of files and folders of a project that are protected in a shell's sandbox.
    SHELL_MASKS_MAX: usize = 256, "paths";
    /// The timeout for the start of a shell's sandbox.
    SHELL_START_MS: u64 = 10_000, "ms";
    /// The interval at which the resource usage of shells is checked.
    SHELL_TICK_MS: u64 = 50, "ms";
    /// The processes that the kernel allows a shell's sandbox beyond its limit: bubblewrap's own, and some so that the
    /// excess is noticed.
    SHELL_PROCESSES_BEYOND: u64 = 64, "processes";
    /// The time to wait for the end of a shell's sandbox that was killed.
    SHELL_GONE_MS: u64 = 5_000, "ms";
    /// The maximum number of entries of a project that are searched: before a shell is started for what has to be
    /// covered, and after a command for file privileges. A command can create many.
    SHELL_SWEEP_ENTRIES_MAX: usize = 1_000_000, "entries";
    /// The maximum depth of folders that are searched for file privileges. Each level holds an open file during the
    /// search.
    SHELL_SWEEP_DEPTH_MAX: usize = 256, "levels";
    /// The number of names that are tried when an unapproved file of a shell is renamed. All but the first one are
    /// random.
    SHELL_UNAPPROVED_NAMES_MAX: usize = 4, "names";
    /// The maximum size that is read of the record of a shell whose process was killed.
    SHELL_RECORD_BYTES_MAX: u64 = 64 << 20, "bytes";
    /// The time after the last entry of its record during which a shell of a killed process counts as having been
    /// alive.
    SHELL_RECORD_SLACK_S: i64 = 2, "s";
    /// The maximum size of the configuration of a git repository that was made in a shell. A larger one is not checked
    /// and not kept.
    GIT_CONFIG_BYTES_MAX: u64 = 256 << 10, "bytes";
    /// The maximum number of files that a reply lists because their privileges were removed.
    SHELL_SWEEP_NAMED_MAX: usize = 32, "paths";
}
