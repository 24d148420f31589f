"""What is shown by which test: a part of docs/security.md, whose rows are checked to name tests that exist."""

from __future__ import annotations

import textwrap
from typing import NamedTuple


class Shown(NamedTuple):
    what: str
    tests: tuple[str, ...]
    """``folder/file::test``, below ``tests/``."""
    lacks: str = ""
    """What of it is not there yet."""


AUTH, POLICIES, PORT = (
    "security/users/test_auth",
    "unit/auth/test_policies",
    "security/sockets/test_replication_port",
)
HTTP, USERS, TLS = "security/sockets/test_http", "security/users/test_http_users", "security/sockets/test_tls"
ATTACKS, DOORS, FUZZ = (
    "security/users/test_known_attacks",
    "security/users/test_open_doors",
    "security/test_fuzz",
)
SIGNED, COPIES = "interop/test_signed_clients", "unit/auth/test_user_copies"
BOUND = "security/users/test_bound_requests"
SHARES = "security/tables/test_shares"
SMUGGLED = "security/requests/test_smuggled_fields"
LITE = "security/requests/test_lite_costs"
NAMES = f"{AUTH}::a_name_server_believes_only_its_users"

SHOWN: dict[str, list[Shown]] = {
    "Who you are, and what you may do": [
        Shown(
            "no handler is reached without a signature",
            (f"{AUTH}::no_handler_is_reached_without_a_signature",),
        ),
        Shown(
            "signatures are those of Java, Go and C++ clients (ACL 1.0, ACL 2.0)",
            (
                "unit/protocol/test_signature::the_requests_of_a_java_client_have_our_signatures",
                f"{SIGNED}::a_signed_send_and_a_signed_consumer",
                f"{SIGNED}::who_may_not_send_stores_nothing",
                f"{SIGNED}::who_may_not_read_is_given_nothing",
            ),
        ),
        Shown(
            "unknown, disabled and wrong look the same, and guesses are slowed down by user and by address",
            (
                f"{AUTH}::unknown_disabled_and_wrong_look_the_same",
                f"{AUTH}::guesses_are_slowed_down_for_one_user_at_one_address",
                f"{AUTH}::one_address_guesses_for_many_users_no_faster",
                f"{USERS}::an_address_that_fails_too_often_has_to_wait",
                f"{PORT}::guesses_at_the_secret_of_servers_are_slowed_down",
            ),
        ),
        Shown(
            "policies: the most specific entry, Deny wins, source addresses, default policies, whitelists",
            (
                f"{POLICIES}::the_most_specific_entry_decides_and_deny_wins",
                f"{POLICIES}::default_policies_count_only_if_no_custom_entry_matches",
                f"{AUTH}::sources",
                f"{AUTH}::whitelists",
            ),
        ),
        Shown(
            "mqadmin's commands for users and policies",
            (
                "interop/test_auth::users_and_policies_by_mqadmin",
                "interop/test_auth::users_and_policies_are_copied_from_a_rocketmq",
            ),
        ),
        Shown(
            "plain_acl.yml of 4.x becomes users",
            (
                "unit/auth/test_migration::accounts_become_users_once",
                "unit/auth/test_migration::files_that_are_refused",
            ),
        ),
        Shown(
            "one row for each code; deny unless listed; the page prints the table",
            (f"{POLICIES}::every_request_code_has_a_row", f"{POLICIES}::the_page_prints_the_table"),
        ),
        Shown(
            "requests are judged on what they really touch: stored messages, transactions, retry topics, light queues",
            (
                f"{AUTH}::a_foreign_message_is_not_sent_back_into_ones_own_retry_topic",
                f"{AUTH}::a_message_is_looked_up_by_its_own_topic_not_the_headers",
                f"{AUTH}::a_retry_topic_is_its_groups",
                f"{AUTH}::a_foreign_transaction_is_not_ended",
                f"{AUTH}::a_check_shows_a_half_message_only_to_who_may_write_its_topic",
                f"{AUTH}::light_queues_are_topics_of_their_own",
                f"{AUTH}::the_brokers_own_topics_are_the_clusters",
                f"{AUTH}::a_heartbeat_and_locks_name_no_foreign_group",
                f"{SMUGGLED}::further_topics_of_a_request_are_checked",
                f"{SMUGGLED}::a_reply_enters_no_light_queue_and_has_no_receipt",
                f"{SMUGGLED}::a_timer_message_is_deleted_from_its_own_topic_only",
            ),
        ),
        Shown(
            "client ids are bound to users, also those of lite topics, whose messages stay below their own topic",
            (
                f"{AUTH}::a_client_id_is_its_users",
                "security/users/test_lite_clients::messages_of_another_topic_are_not_popped_under_the_id_of_its_client",
                "security/users/test_lite_clients::subscriptions_of_another_users_client_stay",
                "security/users/test_lite_clients::a_lite_topic_of_ones_own_names_no_queue_of_others",
            ),
        ),
        Shown(
            "name server, controller, HA port and HTTP have the same users",
            (
                f"{AUTH}::a_name_server_believes_only_its_users",
                "security/users/test_controller_users::nobody_else_is_heard",
                f"{PORT}::who_proves_nothing_gets_nothing",
                f"{USERS}::nobody_reads",
                f"{USERS}::a_user_may_do_what_policies_say_from_where_they_say",
            ),
        ),
        Shown(
            "slaves and new masters know the users of the old one; nothing of it is in clear on the wire or the disk",
            (
                f"{COPIES}::a_slave_lets_in_whom_its_master_lets_in",
                f"{COPIES}::what_its_master_takes_away_is_taken_away_at_the_slave",
                f"{COPIES}::what_is_copied_is_on_disk_under_the_slaves_own_key",
                f"{COPIES}::an_answer_is_good_for_one_question_and_from_its_master_alone",
                f"{COPIES}::nobody_but_a_server_gets_the_users",
                "security/users/test_replicated_users::a_slave_knows_the_users_of_its_master",
                "security/users/test_replicated_users::a_promoted_master_knows_the_users_of_the_old_one",
            ),
        ),
        Shown(
            "secrets are encrypted on disk, and in no answer, log line, metric, page or trace of a Spark query",
            (
                f"{POLICIES}::users_survive_in_their_file_without_a_clear_secret",
                f"{POLICIES}::a_file_that_is_cut_changed_or_of_another_key_refuses_the_start",
                f"{POLICIES}::the_key_is_private_and_must_not_be_lost",
                f"{AUTH}::no_answer_shows_a_password",
                f"{DOORS}::files_of_users_are_their_owners",
                "unit/protocol/test_signature::keys_are_not_shown",
                "spark/test_signing::keys_are_nowhere_that_a_query_leaves_traces",
            ),
        ),
        Shown(
            "HTTP: bearer tokens with scopes and expiry, session cookies with CSRF tokens, Host and Origin, ETags",
            (
                f"{USERS}::a_session_of_a_page",
                f"{USERS}::a_bearers_token_is_no_cookie_and_a_cookie_no_token",
                f"{USERS}::a_token_that_only_reads",
                f"{USERS}::sessions_end_and_are_bounded",
                f"{HTTP}::a_name_that_somebody_elses_dns_points_here_reads_and_posts_nothing",
                f"{HTTP}::a_request_without_a_host_or_with_two_is_refused",
                f"{HTTP}::pages_of_other_origins_are_refused",
                f"{HTTP}::what_a_page_may_send_without_being_asked_first_is_not_read",
                "integration/web/test_http_api::topics_are_made_changed_and_deleted",
            ),
        ),
        Shown(
            "a server that others reach has users, or an operator's consent",
            (
                "unit/server/settings/test_server_settings::a_server_that_others_reach_has_users_or_an_operators_consent",
                f"{USERS}::http_on_an_open_address_without_users_needs_consent",
            ),
        ),
        Shown("our clients sign on RocketMQ 5.5.0", ("interop/test_credentials::every_client_is_let_in",)),
    ],
    "Where RocketMQ 5.5.0 is open": [
        Shown("name server: anybody puts a broker into a route, or takes one out", (NAMES,)),
        Shown("name server: anybody changes its KV table, and deletes topics", (NAMES,)),
        Shown("name server: anybody reads its settings with their secrets, and changes them", (NAMES,)),
        Shown("the replication port gives the log to anybody", (f"{PORT}::who_proves_nothing_gets_nothing",)),
        Shown(
            "and in clear where TLS is required",
            (f"{PORT}::a_slave_copies_over_tls_and_nobody_in_plain",),
        ),
        Shown(
            "the address of a PROXY protocol, and so of a policy, is whatever a peer says",
            (
                f"{DOORS}::the_address_of_a_proxy_protocol_is_not_believed",
                f"{DOORS}::a_source_that_is_claimed_gives_no_right",
            ),
        ),
        Shown(
            "any user may send 25 requests about others' topics, groups and settings (18, 21, 25, 26, 28, 33, 43, 45,"
            " 61, 200, 201, 305, 306, 316, 324, 325, 329, 354, 361, 400, 401, 907, 2001, 5001, 200151)",
            (f"{AUTH}::a_user_without_the_right_is_refused",),
        ),
        Shown(
            "of these, 25 switches authentication off",
            (f"{AUTH}::authentication_cannot_be_switched_off_by_a_request",),
        ),
        Shown(
            "and 26 tells the super user's password, as getUser tells every user's",
            (f"{AUTH}::no_answer_shows_a_password",),
        ),
        Shown(
            "36 copies a message of others into one's own retry topic",
            (f"{AUTH}::a_foreign_message_is_not_sent_back_into_ones_own_retry_topic",),
        ),
        Shown(
            "a pull of `%RETRY%other` is judged by the group that the header names",
            (f"{AUTH}::a_retry_topic_is_its_groups",),
        ),
        Shown(
            "33 does not compare the topic with the message",
            (f"{AUTH}::a_message_is_looked_up_by_its_own_topic_not_the_headers",),
        ),
        Shown(
            "37 commits half messages of others, naming one's own topic or none",
            (f"{AUTH}::a_foreign_transaction_is_not_ended",),
        ),
        Shown(
            "refusals tell unknown users from wrong passwords",
            (f"{AUTH}::unknown_disabled_and_wrong_look_the_same",),
        ),
        Shown(
            "files of users, and copies of settings files (`*.conf.bak`), can be read by others",
            (
                f"{DOORS}::files_of_users_are_their_owners",
                f"{DOORS}::a_settings_file_and_its_copies_are_their_owners",
            ),
        ),
        Shown(
            "a changed field or body with an old signature",
            (f"{AUTH}::what_was_signed_is_what_is_done",),
        ),
        Shown(
            "a signed request as another one, at another server, later or again",
            (
                f"{BOUND}::a_route_that_is_asked_for_is_no_deletion",
                f"{BOUND}::a_request_without_fields_is_no_other",
                f"{BOUND}::fields_are_those_that_were_signed",
                f"{BOUND}::a_body_is_the_one_that_was_signed_and_begins_where_it_began",
                f"{BOUND}::a_request_is_for_the_server_that_was_reached",
                f"{BOUND}::a_request_is_for_its_time",
                f"{BOUND}::a_request_is_taken_once",
                f"{BOUND}::a_full_table_lets_nothing_pass_twice_and_keeps_who_is_there",
                f"{BOUND}::whose_requests_need_a_bound_signature",
                "integration/servers/test_evil_name_server::a_producers_requests_hold_nowhere_else",
            ),
            "mqadmin and RocketMQ's clients do not bind their signatures",
        ),
        Shown(
            "50 frames of 16 MiB that never end take 1 GiB of memory",
            ("security/sockets/test_crowd::an_honest_client_hardly_feels_them_and_memory_stays",),
        ),
        Shown(
            "a line of 2.3 KB for each bad connection",
            ("security/requests/test_log_lines::a_fault_that_a_peer_can_repeat_is_told_once",),
        ),
    ],
    "TLS": [
        Shown(
            "by the first byte; permissive and enforcing; TLS 1.2 and later",
            (
                f"{TLS}::plain_and_encrypted_peers_on_one_port",
                f"{TLS}::plain_peers_are_refused_when_tls_is_required",
                f"{TLS}::old_versions_are_refused",
                f"{USERS}::https_alone_with_secure_cookies",
            ),
        ),
        Shown(
            "client certificates, and their names as users",
            (
                f"{TLS}::certificates_of_clients",
                f"{AUTH}::a_trusted_certificate_is_its_names_user_if_that_is_wanted",
                "security/users/test_certificate_users::a_certificate_is_its_names_user_with_its_policies",
                "security/users/test_certificate_users::other_certificates_are_nobody",
            ),
        ),
        Shown(
            "lists of revoked certificates",
            (f"{TLS}::a_revoked_certificate_is_refused_as_soon_as_the_list_says_so",),
            "clients of ours look at none",
        ),
        Shown(
            "files are read again without a dropped connection",
            (f"{TLS}::a_changed_certificate_is_used_for_new_connections",),
        ),
        Shown(
            "our clients verify host names",
            (
                "integration/client/test_client_tls::what_is_not_trusted_is_refused",
                "integration/client/test_client_tls::a_name_that_the_certificate_lacks",
            ),
        ),
        Shown(
            "unmodified Java and Go clients, with signatures; RocketMQ's for Python; ours",
            (
                f"{SIGNED}::java_over_tls_with_a_certificate_and_signatures",
                "interop/test_tls::javas_client_on_our_servers",
                f"{SIGNED}::go_over_tls_and_signatures",
                "interop/test_tls::pythons_client_through_a_proxy_to_our_servers",
                "integration/client/test_client_tls::every_client",
            ),
            "of Go, the branch after the release 2.1.2, which has none; Python's through a proxy, which it needs; the"
            " binding of the C++ client has none",
        ),
    ],
    "Hostile input": [
        Shown(
            "before any login: frames, headers, connections in all and by address, handshakes, bytes in flight",
            (
                "security/sockets/test_partial_frames::an_address_has_no_more_than_its_share",
                "security/sockets/test_partial_frames::known_peers_stay_and_strangers_are_refused",
                "security/sockets/test_partial_frames::a_frame_that_does_not_go_on_ends",
                "security/sockets/test_partial_frames::first_frames_have_a_smaller_bound_than_those_of_peers_that_are_known",
                "security/sockets/test_crowd::an_honest_client_hardly_feels_them_and_memory_stays",
                f"{TLS}::a_handshake_has_a_time_limit",
                f"{TLS}::a_handshake_has_a_size_limit",
                "security/sockets/test_unread::all_that_do_not_read_have_a_bound_together_and_others_are_served",
                "security/requests/test_json::a_header_as_long_as_may_be",
                f"{HTTP}::idle_connections_keep_nobody_out",
                f"{HTTP}::bodies_that_never_come_keep_nobody_out",
            ),
        ),
        Shown(
            "after it: every table is bounded in bytes, refuses what is new, and shows in a metric",
            (
                "security/tables/test_table_registry::every_container_of_a_running_broker_and_name_server_is_bounded",
                "security/tables/test_tables::a_full_table_refuses_what_is_new_and_keeps_what_it_has",
                "security/requests/test_registration::one_connection_makes_so_many_groups_whatever_it_asks",
                f"{POLICIES}::the_table_is_bounded",
                f"{AUTH}::one_user_has_no_more_connections_than_its_share",
                f"{AUTH}::one_user_makes_so_many_groups_over_whatever_connections",
            ),
        ),
        Shown(
            "one user holds no more than a share of topics, groups, offsets, clients and subscriptions, of locks, of"
            " what is parked or waits, of half and delayed messages and of POP's check points and acknowledgements;"
            " each refusal is audited and counted",
            tuple(
                f"{SHARES}::{name}"
                for name in (
                    "topics",
                    "groups",
                    "offsets",
                    "offsets_of_pulls_that_nobody_commits",
                    "parked_pulls",
                    "parked_pops_and_notifications",
                    "clients_and_subscriptions",
                    "locks",
                    "reads_of_an_archive",
                    "requests_that_wait_for_other_brokers",
                    "held_pulls_of_cold_data",
                    "half_messages",
                    "half_messages_that_are_given_up",
                    "delayed_messages",
                    "a_delay_that_begins_with_a_commit",
                    "delayed_replies",
                    "check_points",
                    "acknowledgements",
                    "acknowledgements_of_one_turn",
                    "acknowledgements_without_a_check_point",
                    "acknowledgements_at_an_acting_slave",
                    "lite_subscriptions",
                    "all_tables_of_a_user_together",
                    "refusals_are_audited_and_counted_by_kind",
                    "what_a_start_finds_is_nobodys",
                )
            )
            + tuple(
                f"{SHARES}_of_waiting::{name}" for name in ("ordered_pops", "recalls", "calls_of_clients")
            ),
        ),
        Shown(
            "no field of a message stops a start, turns a topic into a BatchCQ, or is kept or retried for ever",
            tuple(
                f"{SMUGGLED}::{name}"
                for name in (
                    "a_half_message_without_a_possible_delay_is_refused",
                    "a_broker_starts_whatever_its_half_messages_say",
                    "a_half_message_of_the_future_is_given_up",
                    "a_reply_cannot_change_the_kind_of_a_topic",
                    "one_message_of_an_inner_batch_is_sent_back",
                    "messages_of_a_popped_inner_batch_come_again_one_by_one",
                    "a_message_of_a_batch_names_no_places_in_light_queues",
                    "a_negative_number_of_deliveries_is_none",
                    "a_popped_message_that_comes_again_was_delivered_once",
                    "a_message_creates_a_bounded_number_of_light_queues",
                )
            ),
        ),
        Shown(
            "no request holds a server",
            (
                "security/requests/test_costs::no_request_holds_a_broker",
                "security/requests/test_costs::no_request_holds_a_name_server",
                "security/sockets/test_loop::many_connections_with_costly_requests_share_the_time_of_one_iteration",
                "security/requests/test_text_costs::a_property_that_is_almost_a_number_is_looked_at_once",
                "security/requests/test_text_costs::acknowledgements_that_wait_are_not_counted_for_each_new_one",
                f"{SMUGGLED}::a_message_is_found_in_the_largest_inner_batch_in_a_moment",
            ),
        ),
        Shown(
            "nor does what a request leaves for later: revivals, notifications, clients of lite topics",
            (
                "unit/broker/pop/test_poprevive::a_large_inner_batch_is_revived_in_steps",
                "unit/broker/pop/test_popwatch::"
                "many_parked_notifications_look_at_a_bounded_number_of_queues_in_a_turn",
                f"{LITE}::a_message_looks_at_few_of_the_clients_that_have_no_room_for_it",
                f"{LITE}::the_names_of_one_subscription_are_taken_and_left_in_slices",
                f"{LITE}::subscriptions_are_forgotten_in_slices",
                f"{LITE}::full_dispatches_that_are_due_together_come_one_after_another",
                f"{LITE}::news_of_clients_that_do_not_ask_move_in_slices",
                f"{LITE}::a_pop_looks_at_a_bounded_number_of_queues_without_messages_and_then_goes_on",
                "unit/server/test_http_stored_messages::large_records_are_decoded_one_at_a_time_beside_the_loop",
            ),
        ),
        Shown(
            "decompression is capped by size and ratio, in the broker, clients and Spark",
            (
                "security/requests/test_inflate::a_body_becomes_no_more_than_its_limits",
                "security/requests/test_inflate::a_consumer_passes_sixty_bombs",
                "security/spark/test_spark_inflate::sixty_bombs_become_nulls_or_an_error_that_says_what_to_do",
            ),
        ),
        Shown(
            "JSON: depth, references, long numbers",
            ("security/requests/test_json::deep_nesting_is_refused_as_such",),
        ),
        Shown(
            "one validator of names; no name becomes a path but through it",
            (
                "security/requests/test_names::every_text_of_a_header_or_body_is_a_name_or_declared_free",
                "security/requests/test_names::a_path_from_names_lies_below_its_directory",
                "security/requests/test_names::no_path_is_made_of_a_name_by_hand",
            ),
        ),
        Shown(
            "clients and executors trust no broker",
            (
                "security/store/test_local_reads::a_hostile_broker_has_no_file_opened",
                "security/store/test_local_reads::another_users_store_is_not_read",
                "security/requests/test_routes::a_broker_that_lies_does_not_take_the_others_along",
                "security/tables/test_client_tables::what_is_remembered_of_brokers_has_a_bound",
                "security/tables/test_client_tables::requests_of_a_server_that_reads_no_answer_cost_nothing_more",
                "security/spark/test_hostile_pulls::records_that_were_not_asked_for_are_refused",
                "security/requests/test_log_lines::a_brokers_remark_is_no_line_of_the_applications_log",
                "security/requests/test_terminal::a_store_is_shown_as_text",
            ),
        ),
        Shown(
            "fuzzing, ten minutes in all targets, also guided by atheris, with a kept corpus",
            (
                f"{FUZZ}::its_part_of_ten_minutes",
                f"{FUZZ}::guided_by_what_code_is_reached",
                f"{FUZZ}::what_was_found_before_and_a_moment_more",
            ),
        ),
        Shown(
            "no pickle of foreign bytes, eval, yaml.load, shell, or assertion that is relied on",
            (
                "unit/project/test_rules_of_safety::"
                "no_module_runs_or_unpickles_what_it_reads_or_relies_on_an_assertion",
            ),
        ),
        Shown(
            "published attacks",
            (
                f"{ATTACKS}::cve_2023_33246_settings_start_no_command_and_name_no_file",
                f"{ATTACKS}::cve_2023_37582_a_name_server_writes_no_file_of_a_peers_choice",
                f"{ATTACKS}::cve_2024_23321_no_answer_contains_a_credential",
                f"{ATTACKS}::cve_2023_25194_no_setting_of_a_peer_names_a_class",
                f"{ATTACKS}::cve_2023_46604_no_body_names_a_class",
                f"{ATTACKS}::cve_2021_3127_one_users_rights_open_nothing_of_anothers",
                f"{ATTACKS}::cve_2022_31008_no_page_or_answer_over_http_tells_a_secret_of_replication",
                f"{ATTACKS}::cve_2022_24280_no_peer_chooses_where_a_server_connects",
            ),
        ),
        Shown(
            "files are 0600, directories 0700, and no link is followed when one is opened for writing",
            (
                "security/store/test_store_files::a_broker_lets_nobody_else_read_what_it_stores",
                "security/store/test_store_files::nothing_is_written_through_a_link",
                "security/store/test_store_files::a_device_is_not_even_opened",
            ),
        ),
        Shown(
            "the units of systemd leave little open",
            ("unit/project/test_systemd_units::it_leaves_little_open",),
        ),
    ],
    "Audit": [
        Shown(
            "who did what to what from where, in a private, rotating file, with a limit of lines; metrics by decision",
            (
                "unit/auth/test_auditlog::lines_are_one_object_each_and_limited",
                "unit/auth/test_auditlog::files_are_rotated_and_private",
                f"{AUTH}::decisions_are_told",
                f"{USERS}::everything_is_in_the_audit_log_and_no_secret_is",
                f"{PORT}::who_leaves_without_a_proof_is_audited_once",
                f"{PORT}::who_is_refused_or_silent_is_audited_and_counted",
            ),
        ),
    ],
}


def shown_table() -> str:
    lines = ["\n## What is shown by which test\n"]
    for title, rows in SHOWN.items():
        lines.append(f"\n### {title}\n\n")
        for row in rows:
            names = "; ".join(f"`{test.replace('::', '.py::test_')}`" for test in row.tests)
            text = f"- {row.what}{row.lacks and f' (not yet: {row.lacks})'}: {names}"
            lines.append(textwrap.fill(text, 340, subsequent_indent="  ", break_long_words=False) + "\n")
    return "".join(lines)
