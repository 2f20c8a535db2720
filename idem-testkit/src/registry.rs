//! The one list of cases.

use crate::case::Case;
use crate::clause::Clause;

/// Makes of the list both the table for [`Suite`](crate::Suite) and the macro that makes a test of each case, so
/// that the two cannot differ.
macro_rules! registry {
    ($d:tt $($module:ident :: $name:ident [$($clause:ident)+] $about:literal;)*) => {
        pub(crate) static CASES: &[Case] = &[$(
            Case {
                name: stringify!($name),
                clauses: &[$(Clause::$clause),+],
                about: $about,
                run: |bench| Box::pin(crate::cases::$module::$name(bench)),
            },
        )*];

        /// A test for each case. What [`conformance!`](crate::conformance) expands to.
        #[doc(hidden)]
        #[macro_export]
        macro_rules! for_each_case {
            ($d harness:expr) => {$(
                #[test]
                fn $name() {
                    $d crate::run_as_test($d harness, stringify!($name));
                }
            )*};
        }
    };
}

registry! { $
    claim::claim_writes_the_first_record [K1 D1]
        "a claim of an unused id is Won, and writes exactly its first record";
    claim::claim_refused_leaves_the_record_alone [K1 D11]
        "a claim that finds a record shows it and changes nothing of it";
    claim::claim_race_of_2 [K1 D11 D6]
        "of two claims at once one is Won, and the other is shown the winner's record";
    claim::claim_race_of_8 [K1 D11 D6]
        "of eight claims at once one is Won, and the others are shown the winner's record";
    claim::claim_race_of_64 [K1 D11 D6]
        "of 64 claims at once one is Won, and the others are shown the winner's record";
    claim::claim_race_for_many_ids [K1]
        "three contenders for 256 ids win each of them once";
    claim::claim_race_of_instances [K1]
        "of claims through several stores on the same data one is Won";
    claim::claim_race_for_an_expired_record [K1 K6 D2]
        "no claim wins over an expired record, and one restart of it is applied";
    claim::claim_race_with_a_release [K1 K2]
        "claims that race with a release win the id at most once, and see no third record";
    claim::claim_race_with_a_sweep [K1 K10]
        "claims that race with a sweep win the id once, if it was swept";
    decision::decision_restart_of_an_expired_record [D2 K6]
        "what is finished and expired is a new request, whatever it asks for";
    decision::decision_resume_of_its_own_claim [D3]
        "a claim that finds its own token owns the record";
    decision::decision_mismatch_of_the_operation [D4]
        "in every state that binds the key, another operation is a mismatch";
    decision::decision_incomparable_schemes [D5 K4]
        "a fingerprint under an undeclared scheme is incomparable, under a declared one it is compared";
    decision::decision_mismatch_of_the_payload [D6]
        "in every state that binds the key, another payload is a mismatch";
    decision::decision_replay_of_what_was_done [D7]
        "what is completed is replayed";
    decision::decision_replay_of_a_final_failure [D8]
        "what failed for good is replayed";
    decision::decision_retry_of_a_failure [D9 K6]
        "a retryable failure is taken over, however old it is";
    decision::decision_unknown_after_a_failure [D10]
        "an uncertain failure out of its terms is not run again";
    decision::decision_busy_within_the_lease [D11]
        "within its lease a record is not taken over";
    decision::decision_take_over_after_the_lease [D12]
        "after its lease a record is taken over, with its recovery point";
    decision::decision_unknown_after_the_lease [D13 K10]
        "after its lease a record out of its terms is not run again";
    transition::transition_renew [K2]
        "renewals do what the model says, in every state and under every expectation";
    transition::transition_checkpoint [K2]
        "checkpoints do what the model says, in every state and under every expectation";
    transition::transition_complete [K2]
        "completions do what the model says, in every state and under every expectation";
    transition::transition_fail_final [K2]
        "final failures do what the model says, in every state and under every expectation";
    transition::transition_fail_retryable [K2]
        "retryable failures do what the model says, in every state and under every expectation";
    transition::transition_release [K2]
        "releases do what the model says, in every state and under every expectation";
    transition::transition_take_over [K2]
        "takeovers do what the model says, in every state and under every expectation";
    transition::transition_restart [K2]
        "restarts do what the model says, in every state and under every expectation";
    transition::transition_resolve [K2]
        "verdicts do what the model says, in every state and under every expectation";
    transition::transition_creates_nothing [K2]
        "no transition makes a record of nothing";
    late_owner::late_owner_after_a_takeover [K2]
        "an owner that was replaced can write nothing";
    late_owner::late_owner_after_a_restart [K2]
        "an owner whose key began anew can write nothing";
    late_owner::late_owner_after_a_verdict [K2]
        "an owner whose record was settled from outside can write nothing";
    late_owner::late_owner_after_a_release_and_a_new_claim [K2]
        "an owner that released its key can write nothing";
    late_owner::late_owner_after_its_own_finish [K2]
        "an owner that has finished can change nothing";
    late_owner::late_snapshot_before_a_renewal [K2]
        "a snapshot from before a renewal takes nothing over";
    late_owner::late_verdict_against_a_live_owner [K2]
        "no verdict settles what a live owner is working on, nor what is answered";
    lost_answer::lost_answer_of_a_claim [K1 D3]
        "a claim sent again finds its own record";
    lost_answer::lost_answer_of_a_claim_that_was_replaced [K1]
        "a claim sent again after it was taken over does not own the record";
    lost_answer::lost_answer_of_a_finish [K2 K7]
        "a finish sent again is known for applied, another one is not";
    lost_answer::lost_answer_of_a_release [K2 K7]
        "a release sent again is known for applied";
    lost_answer::lost_answer_of_a_renewal_or_checkpoint [K2 K7]
        "a renewal or a checkpoint sent again does no harm";
    lost_answer::lost_answer_of_a_swap [K2 K7]
        "a takeover, restart or verdict sent again is known for applied";
    lost_answer::lost_answer_and_then_replaced [K2 K7]
        "a finish sent again after its record was replaced is lost";
    checkpoint::checkpoint_delayed [K2]
        "a delayed checkpoint changes nothing";
    checkpoint::checkpoint_of_the_next_attempt [K2]
        "the first checkpoint of the next attempt is newer than all before";
    checkpoint::checkpoint_makes_uncertain [K2]
        "what was checkpointed is uncertain, and its key stays bound";
    checkpoint::checkpoint_keeps_its_data [K4]
        "recovery points come back exactly";
    checkpoint::checkpoint_is_forgotten_by_a_restart [K2 D2]
        "a restart begins without a recovery point, and recovers like a first use";
    reclaim::reclaim_up_to_its_limit [K2 D12 D13]
        "uncertain work is run again as often as its terms allow";
    reclaim::reclaim_is_not_used_up_by_harmless_failures [K2 D9]
        "failures without an effect use up neither reclaims nor the window";
    reclaim::reclaim_doubt_is_kept [K2]
        "an uncertain record stays uncertain, and its window keeps running";
    reclaim::reclaim_within_its_window [K2 D10 D13]
        "uncertain work is run again within its window only";
    reclaim::reclaim_by_the_terms_of_the_claim [K2 D13]
        "the terms of the claim hold, whatever a later sender asks for";
    resolve::resolve_what_is_unknown [K2 K4]
        "every verdict settles every record whose outcome is unknown";
    resolve::resolve_as_retryable_keeps_the_origin [K2]
        "a retry after a verdict has the same origin, and the late owner is shut out";
    resolve::resolve_as_released_frees_the_key [K2]
        "after a release by an operator the key is unused";
    resolve::resolve_twice [K2 K7]
        "a verdict by an outdated picture of the record is lost";
    expiry::expiry_hides_nothing [K6]
        "an expired record is shown to claims, loads and lost writes";
    expiry::expiry_counts_from_the_finish [K2 K6]
        "the retention begins with the finish";
    expiry::expiry_of_a_late_takeover [K6 D7 D2]
        "the answer of a takeover a day later is replayed for its whole retention";
    expiry::expiry_never_resolves [K6 K10 D13]
        "age alone settles nothing";
    expiry::expiry_restart_goes_on_counting [K2]
        "restarts count revisions on, and attempts anew";
    time::time_lease_of_zero [K2 D12]
        "a lease of zero is over at once";
    time::time_lease_at_its_maximum [K2 D11]
        "the longest lease is not over, and overflows nothing";
    time::time_retention_at_its_maximum [K6 K10]
        "the longest retention is not over, and overflows nothing";
    time::time_retention_of_zero [K6 D2]
        "a retention of zero is over at once";
    time::time_goes_on [K2]
        "the store's now does not go back";
    time::time_is_the_stores [K2 D11 D12]
        "leases run by the store's clock";
    sweep::sweep_up_to_its_limit [K10]
        "a sweep removes as many expired records as its limit allows, and says how many";
    sweep::sweep_of_many [K10]
        "a sweep of more records than one batch has keeps its limit";
    sweep::sweep_only_what_has_expired [K10]
        "a sweep removes what has expired, and nothing else";
    sweep::sweep_is_not_blocked_by_the_unresolved [K10]
        "unresolved records do not keep a sweep from the expired ones";
    sweep::sweep_counts_what_is_stuck [K10]
        "a sweep counts what is stuck, up to its limit";
    sweep::sweep_by_many_at_once [K10]
        "sweeps at once remove each record once";
    sweep::sweep_against_a_restart [K10 K2]
        "a record is swept or restarted, and never both";
    sweep::sweep_frees_the_key [K10 K5]
        "a swept key is unused, and its neighbour is not";
    ids::ids_with_case [K5]
        "ids that differ in case differ";
    ids::ids_with_spaces [K5]
        "ids that differ in spaces differ";
    ids::ids_with_separators [K5]
        "scope and key are not joined";
    ids::ids_with_unicode_forms [K5]
        "ids that look the same differ";
    ids::ids_with_meaning_elsewhere [K5]
        "ids that mean something to a database are texts";
    ids::ids_of_full_length [K5]
        "ids that differ in their last byte differ";
    ids::ids_in_other_scopes [K5]
        "a key in another scope is another key";
    ids::ids_in_another_store [K5 K10]
        "stores side by side in one database have nothing in common";
    bytes::bytes_of_bodies [K4]
        "bodies come back exactly, empty and omitted ones too";
    bytes::bytes_of_a_large_body [K4]
        "a body of 1 MiB comes back exactly";
    bytes::bytes_of_headers [K4]
        "header lines come back exactly, in order and with repeats";
    bytes::bytes_of_many_headers [K4]
        "many and long header lines come back exactly";
    bytes::bytes_of_codes [K4]
        "status codes come back exactly";
    bytes::bytes_of_claims [K4]
        "operations, fingerprints and terms come back exactly";
    bytes::bytes_of_tokens [K4 K2]
        "origins and tokens are any bits";
    bytes::bytes_of_counters [K4 K2]
        "revisions and sequences outgrow small numbers";
    race::race_of_takeovers [K2 D12 D9]
        "of many takeovers at once one is applied";
    race::race_of_takeover_and_owner [K2]
        "at the end of a lease either the owner's write or the takeover is applied";
    race::race_of_takeover_and_release [K2]
        "either a release or a takeover is applied";
    race::race_of_everybody [K2 K10]
        "everything at once is explained by some order";
    race::race_of_answers [K2]
        "of many outcomes at once one is applied";
    race::race_of_restarts [K2 D2]
        "of many restarts at once one is applied";
    race::race_of_renewals [K2]
        "renewals at once are all applied";
    race::race_of_checkpoints [K2]
        "of many checkpoints at once the newest is left";
    race::race_of_verdicts [K2]
        "of a verdict and what it competes with one is applied";
    race::race_of_instances [K2 K7]
        "several stores on the same data are one store";
    model::model_of_sequences [K2 K6 K10]
        "random sequences do what the model does";
    model::model_of_histories [K1 K2 K7 K9]
        "random histories of concurrent calls are explained by some order";
    cancel::cancel_a_claim [K9]
        "a claim dropped at any await was made or was not";
    cancel::cancel_an_owners_write [K9]
        "an owner's write dropped at any await was made or was not";
    cancel::cancel_a_swap [K9]
        "a takeover, restart or verdict dropped at any await was made or was not";
    cancel::cancel_a_read_or_a_sweep [K9]
        "a read or a sweep dropped at any await leaves the store whole";
    cancel::cancel_many_at_once [K9]
        "many calls dropped at once leave the store whole";
    cancel::cancel_with_one_connection [K9 K11]
        "dropped calls do not use up the only connection";
    cancel::one_connection_is_enough [K11]
        "many callers share one connection";
    durability::durable_when_reopened [K3]
        "everything that was acknowledged is there when the data is opened again";
    durability::durable_after_a_crash [K3]
        "everything that was acknowledged is there after a loss of power";
    durability::unknown_status_is_an_error [K8]
        "a status that is not known is an error, and never absence";
    contention::contention_with_an_uncommitted_claim [K12 K1]
        "a claim that meets an uncommitted one is contended, within the bound";
    contention::contention_with_a_locked_record [K12]
        "a write that meets a locked record is contended, and a sweep passes it over, within the bound";
    contention::contention_without_others [K12]
        "a call that meets nobody is never contended";
    refusal::refusal_never_by_a_store [K13]
        "a store without a cache never refuses";
    refusal::refusal_only_of_the_same_request [K13]
        "a cache refuses the same request of another sender, and nothing else";
    refusal::refusal_is_soon_over [K13]
        "a cache refuses nothing that has been finished for longer than it declares";
    flow::flow_of_many_senders [K1 K2 D7]
        "of many senders through two executors one does the work, and all get its answer";
    flow::flow_after_crashes [K1 K2 K9 D12]
        "after a crash between any two steps there is one effect, and one answer";
}
