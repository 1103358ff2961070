//! The guarantees of `Journal`, `Loom`, `Ledger`, `Contracts` and `Improvements` as test cases that every store runs.
//!
//! A separate suite per store was rejected, because it drifts to what that store happens to do. Here a store provides
//! a [`Subject`] and gets one test per case, and one more test that fails if a case is missing.
//!
//! ```
//! use cantrip_loom::MemoryLoom;
//! use cantrip_loom_suite::Ephemeral;
//!
//! cantrip_loom_suite::conformance!(memory, Ephemeral::new(MemoryLoom::new()));
//! # fn main() {}
//! ```

mod contract_cases;
mod dataset_cases;
mod fixtures;
pub mod improve_fixtures;
mod job_cases;
mod journal_cases;
mod leases_cases;
mod ledger_cases;
mod summary_cases;
mod thread_cases;
mod tree_cases;

use cantrip_loom::{Contracts, Improvements, Journal, Ledger, Loom};

pub use fixtures::{Episode, LoomWriter, at, closed, reserve, sample_cantrip, settled, started, usd, utterance};

/// All that a store can be asked for.
pub trait Store: Journal + Loom + Ledger + Contracts + Improvements {}

impl<S: Journal + Loom + Ledger + Contracts + Improvements> Store for S {}

/// A store under test, new and empty.
pub trait Subject: Sized + Send + Sync {
    type Store: Store;

    fn store(&self) -> &Self::Store;

    /// Closes the store and opens its data again, as another process would; none if the store keeps no data.
    fn reopen(self) -> impl Future<Output = Option<Self>> + Send;

    /// Returns true if the store accepts steps that move money. A store that does not must return false, and the cases
    /// then check that it refuses such steps.
    fn keeps_ledger(&self) -> bool {
        true
    }

    /// Returns true if the store accepts steps with contract rows. The same rule applies as for the ledger.
    fn keeps_contracts(&self) -> bool {
        self.keeps_ledger()
    }
}

/// A store that keeps no data when it is closed.
#[derive(Debug)]
pub struct Ephemeral<S>(S);

impl<S> Ephemeral<S> {
    pub fn new(store: S) -> Self {
        Self(store)
    }
}

impl<S: Store> Subject for Ephemeral<S> {
    type Store = S;

    fn store(&self) -> &S {
        &self.0
    }

    async fn reopen(self) -> Option<Self> {
        None
    }
}

/// Runs one case to its end, on its own single-threaded runtime.
pub fn run<F: Future<Output = ()>>(case: F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    runtime.expect("a runtime without I/O can always be built").block_on(case);
}

fn always(_: &impl Subject) -> bool {
    true
}

fn with_ledger(subject: &impl Subject) -> bool {
    subject.keeps_ledger()
}

fn with_contracts(subject: &impl Subject) -> bool {
    subject.keeps_contracts()
}

/// Runs a case on a store and a writer for it, or on the subject if the case reopens it or asks what it keeps.
macro_rules! run_on {
    (store, $subject:ident, $case:path) => {
        $case($subject.store(), super::LoomWriter::new($subject.store())).await
    };
    (subject, $subject:ident, $case:path) => {
        $case($subject).await
    };
}

/// The cases of each module, with the stores for which they apply and the arguments that they take.
macro_rules! cases {
    ($dollar:tt $($module:ident if $applies:ident on $given:ident { $($case:ident),+ $(,)? })+) => {
        /// The names of all cases.
        pub const CASES: &[&str] = &[$($(stringify!($case)),+),+];

        /// The cases themselves, for the macro.
        #[doc(hidden)]
        pub mod cases {
            $($(pub async fn $case<S: super::Subject>(subject: S) {
                if super::$applies(&subject) {
                    run_on!($given, subject, super::$module::$case);
                }
            })+)+
        }

        /// Makes a module `name` with one test per case. Each test runs against a new value of the expression `maker`.
        #[macro_export]
        macro_rules! conformance {
            ($dollar name:ident, $dollar maker:expr) => {
                mod $dollar name {
                    #[allow(unused_imports)]
                    use super::*;

                    const RUN: &[&str] = &[$($(stringify!($case)),+),+];

                    $($(#[test]
                    fn $case() {
                        $dollar crate::run($dollar crate::cases::$case($dollar maker));
                    })+)+

                    #[test]
                    fn no_case_is_missing() {
                        assert_eq!(RUN, $dollar crate::CASES);
                    }
                }
            };
        }
    };
}

cases! { $
    journal_cases if always on store {
        a_run_reads_back_in_the_order_it_was_written,
        every_record_is_chained_to_the_one_before_it,
        appends_at_once_leave_no_gap,
        a_refused_step_harms_no_other,
        a_step_is_written_whole_or_not_at_all,
        a_step_asked_for_again_is_written_once,
        a_step_id_with_other_content_is_a_conflict,
        a_run_is_opened_once,
        an_entity_has_one_live_run,
        an_ended_run_takes_annotations_only,
        without_a_lease_only_annotations_are_written,
        an_unknown_run_is_not_found,
        a_reader_is_woken_by_the_next_record,
        a_follower_gets_every_record_once,
        an_unknown_kind_passes_through_unchanged,
        a_long_value_is_a_body_and_reads_back,
        a_record_cannot_name_a_body_that_is_not_there,
        a_dropped_append_is_wholly_in_or_out,
        a_scan_gives_every_run_in_the_order_of_writing,
    }
    journal_cases if always on subject {
        money_is_never_dropped,
        a_missing_body_is_an_error,
        copies_keep_place_time_and_epoch,
        what_was_committed_survives_reopening,
    }
    leases_cases if always on store {
        an_old_epoch_writes_nothing_after_a_takeover,
        the_first_acquire_has_one_winner,
        an_expired_lease_is_taken_over_and_not_renewed,
        a_live_lease_is_held_until_it_expires,
        a_returned_lease_is_free_at_once,
        an_expired_lease_still_writes_until_someone_takes_over,
        orphans_are_live_runs_that_nobody_holds,
        owners_are_listed_with_the_leases_of_their_live_runs,
    }
    leases_cases if always on subject {
        epochs_survive_reopening,
    }
    ledger_cases if with_ledger on store {
        money_moves_with_its_records,
        a_refused_reserve_writes_what_stands_for_it_instead,
        a_step_with_money_asked_for_again_is_booked_once,
        only_one_of_two_executors_gets_a_fresh_hold,
        a_call_with_a_reply_is_not_paid_for_again,
        operations_of_a_step_see_the_ones_before,
        holds_of_the_same_tree_are_waited_for,
        holds_at_once_never_pass_the_budget,
        caps_bind_a_tree_of_holds,
        an_overage_is_booked_in_full_and_denies_what_follows,
        an_authorization_is_given_changed_and_taken_back,
        the_authorization_of_a_run_is_the_most_specific_one,
        each_limit_is_held_where_money_is_reserved,
        an_unknown_outcome_is_held_until_someone_reconciles,
        an_old_epoch_cannot_spend,
        recovery_takes_only_what_no_live_owner_holds,
        a_hold_is_adopted_by_the_lease_that_follows,
        an_approval_is_asked_for_decided_and_used_up,
        decisions_are_kept_with_what_they_were_made_from,
    }
    ledger_cases if with_ledger on subject {
        the_ledger_survives_reopening,
    }
    contract_cases if always on subject {
        contracts_are_never_dropped,
    }
    contract_cases if with_contracts on store {
        a_published_signature_never_changes,
        an_artifact_is_kept_once_with_all_its_origins,
        a_pointer_changes_with_its_audit,
        of_writers_with_one_version_one_wins,
        a_predict_has_one_key_one_end_and_one_receipt,
        receipts_of_a_run_are_a_chain_and_hold_its_sums,
        a_refused_reserve_leaves_the_receipt_that_says_so,
        a_trace_goes_from_its_row_to_its_object,
    }
    contract_cases if with_contracts on subject {
        contracts_survive_reopening,
    }
    dataset_cases if always on subject {
        improvements_are_never_dropped,
    }
    dataset_cases if with_contracts on store {
        a_dataset_is_kept_once_with_its_examples,
        versions_of_a_name_follow_each_other,
        verdicts_are_kept_and_the_latest_counts,
        a_metric_is_kept_under_its_hash,
        a_look_of_a_guard_is_counted_once,
    }
    job_cases if with_contracts on store {
        a_job_is_opened_once,
        a_job_goes_on_where_it_ended,
        a_job_that_has_ended_stays_as_it_is,
        a_parked_job_waits_until_its_next_record,
        a_trial_has_one_result,
        records_of_a_job_read_back_as_written,
        looks_are_numbered_where_their_report_is_written,
        reports_at_once_get_different_looks,
        an_evaluation_that_goes_on_is_the_same_look,
        a_finished_report_stays,
        candidates_and_compile_reports_are_kept,
    }
    job_cases if with_contracts on subject {
        improvements_survive_reopening,
    }
    tree_cases if always on store {
        a_turn_reads_back_as_it_was_written,
        an_open_turn_is_not_in_the_tree,
        a_path_leads_from_the_root_to_its_turn,
        a_tail_is_the_end_of_a_path,
        delegation_seals_the_turn_and_the_child_hangs_from_it,
        a_sealed_group_reads_as_five_turns,
        a_fork_is_two_records_and_leaves_the_original_alone,
        a_fork_keeps_the_path_up_to_its_turn,
        leaves_are_the_turns_without_children,
        the_latest_reward_counts_and_all_are_kept,
        a_fold_holds_where_its_turn_is_on_the_path,
        a_fork_has_the_folds_that_were_there_when_it_branched_off,
        an_end_without_a_turn_shows_on_the_last_one,
        a_send_extends_the_thread_of_its_entity,
        a_cast_may_go_on_under_an_earlier_intent,
        runs_say_where_they_stand,
        runs_are_listed_by_where_they_stand,
        a_failed_run_is_reopened_by_its_next_record,
        an_entity_whose_run_failed_can_be_cast_again,
        an_unambiguous_beginning_names_its_thing,
        lists_come_in_pages,
        an_extent_is_what_the_lists_hold,
        settled_calls_read_in_call_order,
        records_that_do_not_follow_are_refused,
    }
    tree_cases if always on subject {
        what_was_open_goes_on_after_reopening,
    }
    summary_cases if always on store {
        runs_are_summed_up_the_newest_first,
        a_summary_counts_children_tokens_and_money,
        a_summary_says_why_a_run_waits_or_failed,
        summaries_are_narrowed_by_every_condition,
        a_run_is_found_by_the_gates_and_codes_it_met,
        runs_are_counted_by_owner_and_time,
        calls_that_wait_for_a_person_are_listed_until_they_are_decided,
    }
    summary_cases if always on subject {
        overviews_survive_reopening,
    }
    thread_cases if always on store {
        a_window_is_the_asked_part_of_a_path,
        a_window_has_what_belongs_to_its_turns,
        a_window_says_where_its_records_are,
        the_folds_of_a_window_are_those_of_the_path,
        buckets_cover_a_path_and_name_its_worst_replies,
        threads_of_a_loom_are_its_entities_as_stretches,
        threads_of_a_run_begin_with_its_own,
        a_thread_costs_what_it_and_its_children_cost,
    }
}
