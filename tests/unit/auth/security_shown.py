"""What is shown by which test: a part of docs/security.md, whose rows are checked to name tests that exist."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import NamedTuple


class Shown(NamedTuple):
    what: str
    tests: tuple[str, ...]
    """``folder/file::test``, below ``tests/``."""
    lacks: str = ""
    """What of it is not there yet."""


LIST = """\
# Who you are, and what you may do
- no handler is reached without a signature
  security/users/test_auth::no_handler_is_reached_without_a_signature
- a user without rights is refused every request and every path of HTTP
  security/users/test_every_request::a_broker_does_nothing_for_a_user_without_rights
  security/users/test_every_request::a_schema_registry_does_nothing_for_a_user_without_rights
  security/users/test_every_request::a_name_server_does_nothing_for_a_user_without_rights
  security/users/test_every_request::a_controller_does_nothing_for_a_user_without_rights
  security/users/test_every_request::a_path_does_nothing_for_a_user_without_rights
- gRPC judges its callers as remoting does, in a broker and before a cluster
  integration/grpc/test_grpc_access::users_are_those_of_remoting
  integration/grpc/test_grpc_access::who_may_not_read_can_do_nothing_with_what_others_have
  integration/grpc/test_grpc_access::who_may_not_write_is_no_producer_that_is_asked_for_transactions
  integration/grpc/test_grpc_access::a_message_of_another_topic_is_no_dead_letter_of_a_group
- signatures are those of Java, Go and C++ clients (ACL 1.0, ACL 2.0)
  unit/protocol/test_signature::the_requests_of_a_java_client_have_our_signatures
  interop/test_signed_clients::a_signed_send_and_a_signed_consumer
  interop/test_signed_clients::who_may_not_send_stores_nothing
  interop/test_signed_clients::who_may_not_read_is_given_nothing
- unknown, disabled and wrong look the same, and guesses are slowed down by user and by address
  security/users/test_auth::unknown_disabled_and_wrong_look_the_same
  security/users/test_auth::guesses_are_slowed_down_for_one_user_at_one_address
  security/users/test_auth::one_address_guesses_for_many_users_no_faster
  security/users/test_http_users::an_address_that_fails_too_often_has_to_wait
  security/sockets/test_replication_port::guesses_at_the_secret_of_servers_are_slowed_down
- policies: the most specific entry, Deny wins, source addresses, default policies, whitelists
  unit/auth/test_policies::the_most_specific_entry_decides_and_deny_wins
  unit/auth/test_policies::default_policies_count_only_if_no_custom_entry_matches
  security/users/test_auth::sources
  security/users/test_auth::whitelists
- mqadmin's commands for users and policies
  interop/test_auth::users_and_policies_by_mqadmin
  interop/test_auth::users_and_policies_are_copied_from_a_rocketmq
- plain_acl.yml of 4.x becomes users
  unit/auth/test_migration::accounts_become_users_once
  unit/auth/test_migration::files_that_are_refused
- one row for each code; deny unless listed; the page prints the table
  unit/auth/test_policies::every_request_code_has_a_row
  unit/auth/test_policies::the_page_prints_the_table
- requests are judged on what they really touch: stored messages, transactions, retry topics, light queues
  security/users/test_auth::a_foreign_message_is_not_sent_back_into_ones_own_retry_topic
  security/users/test_auth::a_message_is_looked_up_by_its_own_topic_not_the_headers
  security/users/test_auth::a_retry_topic_is_its_groups
  security/users/test_auth::a_foreign_transaction_is_not_ended
  security/users/test_auth::a_check_shows_a_half_message_only_to_who_may_write_its_topic
  security/users/test_auth::light_queues_are_topics_of_their_own
  security/users/test_auth::the_brokers_own_topics_are_the_clusters
  security/users/test_auth::a_heartbeat_and_locks_name_no_foreign_group
  security/requests/test_smuggled_fields::further_topics_of_a_request_are_checked
  security/requests/test_smuggled_fields::a_reply_enters_no_light_queue_and_has_no_receipt
  security/requests/test_smuggled_fields::a_timer_message_is_deleted_from_its_own_topic_only
- client ids are bound to users, also those of lite topics, whose messages stay below their own topic
  security/users/test_auth::a_client_id_is_its_users
  security/users/test_lite_clients::messages_of_another_topic_are_not_popped_under_the_id_of_its_client
  security/users/test_lite_clients::subscriptions_of_another_users_client_stay
  security/users/test_lite_clients::a_lite_topic_of_ones_own_names_no_queue_of_others
- name server, controller, HA port and HTTP have the same users
  security/users/test_auth::a_name_server_believes_only_its_users
  security/users/test_controller_users::nobody_else_is_heard
  security/sockets/test_replication_port::who_proves_nothing_gets_nothing
  security/users/test_http_users::nobody_reads
  security/users/test_http_users::a_user_may_do_what_policies_say_from_where_they_say
- slaves and new masters know the users of the old one; nothing of it is in clear on the wire or the disk
  unit/auth/test_user_copies::a_slave_lets_in_whom_its_master_lets_in
  unit/auth/test_user_copies::what_its_master_takes_away_is_taken_away_at_the_slave
  unit/auth/test_user_copies::what_is_copied_is_on_disk_under_the_slaves_own_key
  unit/auth/test_user_copies::an_answer_is_good_for_one_question_and_from_its_master_alone
  unit/auth/test_user_copies::nobody_but_a_server_gets_the_users
  security/users/test_replicated_users::a_slave_knows_the_users_of_its_master
  security/users/test_replicated_users::a_promoted_master_knows_the_users_of_the_old_one
- secrets are encrypted on disk, and in no answer, log line, metric, page or trace of a Spark query
  unit/auth/test_policies::users_survive_in_their_file_without_a_clear_secret
  unit/auth/test_policies::a_file_that_is_cut_changed_or_of_another_key_refuses_the_start
  unit/auth/test_policies::the_key_is_private_and_must_not_be_lost
  security/users/test_auth::no_answer_shows_a_password
  security/users/test_open_doors::files_of_users_are_their_owners
  unit/protocol/test_signature::keys_are_not_shown
  spark/test_signing::keys_are_nowhere_that_a_query_leaves_traces
- HTTP: bearer tokens with scopes and expiry, session cookies with CSRF tokens, Host and Origin, ETags
  security/users/test_http_users::a_session_of_a_page
  security/users/test_http_users::a_bearers_token_is_no_cookie_and_a_cookie_no_token
  security/users/test_http_users::a_token_that_only_reads
  security/users/test_http_users::sessions_end_and_are_bounded
  security/sockets/test_http::a_name_that_somebody_elses_dns_points_here_reads_and_posts_nothing
  security/sockets/test_http::a_request_without_a_host_or_with_two_is_refused
  security/sockets/test_http::pages_of_other_origins_are_refused
  security/sockets/test_http::what_a_page_may_send_without_being_asked_first_is_not_read
  integration/web/test_http_api::topics_are_made_changed_and_deleted
- a server that others reach has users, or an operator's consent
  unit/server/settings/test_server_settings::a_server_that_others_reach_has_users_or_an_operators_consent
  security/users/test_http_users::http_on_an_open_address_without_users_needs_consent
- our clients sign on RocketMQ 5.5.0
  interop/test_credentials::every_client_is_let_in
# Where RocketMQ 5.5.0 is open
- name server: anybody puts a broker into a route, or takes one out
  security/users/test_auth::a_name_server_believes_only_its_users
- name server: anybody changes its KV table, and deletes topics
  security/users/test_auth::a_name_server_believes_only_its_users
- name server: anybody reads its settings with their secrets, and changes them
  security/users/test_auth::a_name_server_believes_only_its_users
- the replication port gives the log to anybody
  security/sockets/test_replication_port::who_proves_nothing_gets_nothing
- and in clear where TLS is required
  security/sockets/test_replication_port::a_slave_copies_over_tls_and_nobody_in_plain
- the address of a PROXY protocol, and so of a policy, is whatever a peer says
  security/users/test_open_doors::the_address_of_a_proxy_protocol_is_not_believed
  security/users/test_open_doors::a_source_that_is_claimed_gives_no_right
- any user may send 25 requests about others' topics, groups and settings (18, 21, 25, 26, 28, 33, 43, 45, 61, 200,
  201, 305, 306, 316, 324, 325, 329, 354, 361, 400, 401, 907, 2001, 5001, 200151)
  security/users/test_auth::a_user_without_the_right_is_refused
- of these, 25 switches authentication off
  security/users/test_auth::authentication_cannot_be_switched_off_by_a_request
- and 26 tells the super user's password, as getUser tells every user's
  security/users/test_auth::no_answer_shows_a_password
- 36 copies a message of others into one's own retry topic
  security/users/test_auth::a_foreign_message_is_not_sent_back_into_ones_own_retry_topic
- a pull of `%RETRY%other` is judged by the group that the header names
  security/users/test_auth::a_retry_topic_is_its_groups
- 33 does not compare the topic with the message
  security/users/test_auth::a_message_is_looked_up_by_its_own_topic_not_the_headers
- 37 commits half messages of others, naming one's own topic or none
  security/users/test_auth::a_foreign_transaction_is_not_ended
- refusals tell unknown users from wrong passwords
  security/users/test_auth::unknown_disabled_and_wrong_look_the_same
- files of users, and copies of settings files (`*.conf.bak`), can be read by others
  security/users/test_open_doors::files_of_users_are_their_owners
  security/users/test_open_doors::a_settings_file_and_its_copies_are_their_owners
- a changed field or body with an old signature
  security/users/test_auth::what_was_signed_is_what_is_done
- a signed request as another one, at another server, later or again
  not yet: mqadmin and RocketMQ's clients do not bind their signatures
  security/users/test_bound_requests::a_route_that_is_asked_for_is_no_deletion
  security/users/test_bound_requests::a_request_without_fields_is_no_other
  security/users/test_bound_requests::fields_are_those_that_were_signed
  security/users/test_bound_requests::a_body_is_the_one_that_was_signed_and_begins_where_it_began
  security/users/test_bound_requests::a_request_is_for_the_server_that_was_reached
  security/users/test_bound_requests::a_request_is_for_its_time
  security/users/test_bound_requests::a_request_is_taken_once
  security/users/test_bound_requests::a_full_table_lets_nothing_pass_twice_and_keeps_who_is_there
  security/users/test_bound_requests::whose_requests_need_a_bound_signature
  integration/servers/test_evil_name_server::a_producers_requests_hold_nowhere_else
- 50 frames of 16 MiB that never end take 1 GiB of memory
  security/sockets/test_crowd::an_honest_client_is_answered_and_memory_is_bounded
- a line of 2.3 KB for each bad connection
  security/requests/test_log_lines::a_fault_that_a_peer_can_repeat_is_told_once
# TLS
- by the first byte; permissive and enforcing; TLS 1.2 and later
  security/sockets/test_tls::plain_and_encrypted_peers_on_one_port
  security/sockets/test_tls::plain_peers_are_refused_when_tls_is_required
  security/sockets/test_tls::old_versions_are_refused
  security/users/test_http_users::https_alone_with_secure_cookies
- client certificates, and their names as users
  security/sockets/test_tls::certificates_of_clients
  security/users/test_auth::a_trusted_certificate_is_its_names_user_if_that_is_wanted
  security/users/test_certificate_users::a_certificate_is_its_names_user_with_its_policies
  security/users/test_certificate_users::other_certificates_are_nobody
- lists of revoked certificates
  not yet: clients of ours look at none
  security/sockets/test_tls::a_revoked_certificate_is_refused_as_soon_as_the_list_says_so
- files are read again without a dropped connection
  security/sockets/test_tls::a_changed_certificate_is_used_for_new_connections
- our clients verify host names
  integration/client/test_client_tls::what_is_not_trusted_is_refused
  integration/client/test_client_tls::a_name_that_the_certificate_lacks
- unmodified Java and Go clients, with signatures; RocketMQ's for Python; ours
  not yet: of Go, the branch after the release 2.1.2, which has none; Python's through a proxy, which it needs; the
    binding of the C++ client has none
  interop/test_signed_clients::java_over_tls_with_a_certificate_and_signatures
  interop/test_tls::javas_client_on_our_servers
  interop/test_signed_clients::go_over_tls_and_signatures
  interop/test_tls::pythons_client_through_a_proxy_to_our_servers
  integration/client/test_client_tls::every_client
# Hostile input
- before any login: frames, headers, connections in all and by address, handshakes, bytes in flight
  security/sockets/test_partial_frames::an_address_has_no_more_than_its_share
  security/sockets/test_partial_frames::known_peers_stay_and_strangers_are_refused
  security/sockets/test_partial_frames::a_frame_that_does_not_go_on_ends
  security/sockets/test_partial_frames::first_frames_have_a_smaller_bound_than_those_of_peers_that_are_known
  security/sockets/test_crowd::an_honest_client_is_answered_and_memory_is_bounded
  security/sockets/test_tls::a_handshake_has_a_time_limit
  security/sockets/test_tls::a_handshake_has_a_size_limit
  security/sockets/test_unread::all_that_do_not_read_have_a_bound_together_and_others_are_served
  security/requests/test_json::a_header_as_long_as_may_be
  security/sockets/test_http::idle_connections_keep_nobody_out
  security/sockets/test_http::bodies_that_never_come_keep_nobody_out
- after it: every table is bounded in bytes, refuses what is new, and shows in a metric
  security/tables/test_table_registry::every_container_of_a_running_broker_and_name_server_is_bounded
  security/tables/test_tables::a_full_table_refuses_what_is_new_and_keeps_what_it_has
  security/requests/test_registration::one_connection_makes_so_many_groups_whatever_it_asks
  unit/auth/test_policies::the_table_is_bounded
  security/users/test_auth::one_user_has_no_more_connections_than_its_share
  security/users/test_auth::one_user_makes_so_many_groups_over_whatever_connections
- one user holds no more than a share of topics, groups, offsets, clients and subscriptions, of locks, of what is
  parked or waits, of half and delayed messages and of POP's check points and acknowledgements; each refusal is
  audited and counted
  security/tables/test_shares::topics
  security/tables/test_shares::groups
  security/tables/test_shares::offsets
  security/tables/test_shares::offsets_of_pulls_that_nobody_commits
  security/tables/test_shares::parked_pulls
  security/tables/test_shares::parked_pops_and_notifications
  security/tables/test_shares::clients_and_subscriptions
  security/tables/test_shares::locks
  security/tables/test_shares::reads_of_an_archive
  security/tables/test_shares::requests_that_wait_for_other_brokers
  security/tables/test_shares::held_pulls_of_cold_data
  security/tables/test_shares::half_messages
  security/tables/test_shares::half_messages_that_are_given_up
  security/tables/test_shares::delayed_messages
  security/tables/test_shares::a_delay_that_begins_with_a_commit
  security/tables/test_shares::delayed_replies
  security/tables/test_shares::check_points
  security/tables/test_shares::acknowledgements
  security/tables/test_shares::acknowledgements_of_one_turn
  security/tables/test_shares::acknowledgements_without_a_check_point
  security/tables/test_shares::acknowledgements_at_an_acting_slave
  security/tables/test_shares::lite_subscriptions
  security/tables/test_shares::all_tables_of_a_user_together
  security/tables/test_shares::refusals_are_audited_and_counted_by_kind
  security/tables/test_shares::what_a_start_finds_is_nobodys
  security/tables/test_shares_of_waiting::ordered_pops
  security/tables/test_shares_of_waiting::recalls
  security/tables/test_shares_of_waiting::calls_of_clients
- no field of a message stops a start, turns a topic into a BatchCQ, or is kept or retried for ever
  security/requests/test_smuggled_fields::a_half_message_without_a_possible_delay_is_refused
  security/requests/test_smuggled_fields::a_broker_starts_whatever_its_half_messages_say
  security/requests/test_smuggled_fields::a_half_message_of_the_future_is_given_up
  security/requests/test_smuggled_fields::a_reply_cannot_change_the_kind_of_a_topic
  security/requests/test_smuggled_fields::one_message_of_an_inner_batch_is_sent_back
  security/requests/test_smuggled_fields::messages_of_a_popped_inner_batch_come_again_one_by_one
  security/requests/test_smuggled_fields::a_message_of_a_batch_names_no_places_in_light_queues
  security/requests/test_smuggled_fields::a_negative_number_of_deliveries_is_none
  security/requests/test_smuggled_fields::a_popped_message_that_comes_again_was_delivered_once
  security/requests/test_smuggled_fields::a_message_creates_a_bounded_number_of_light_queues
- no request holds a server
  security/requests/test_costs::no_request_holds_a_broker
  security/requests/test_costs::no_request_holds_a_name_server
  security/sockets/test_loop::many_connections_with_costly_requests_share_the_time_of_one_iteration
  security/requests/test_text_costs::a_property_that_is_almost_a_number_is_looked_at_once
  security/requests/test_text_costs::acknowledgements_that_wait_are_not_counted_for_each_new_one
  security/requests/test_smuggled_fields::a_message_is_found_in_the_largest_inner_batch_in_a_moment
- nor does what a request leaves for later: revivals, notifications, clients of lite topics
  unit/broker/pop/test_poprevive::a_large_inner_batch_is_revived_in_steps
  unit/broker/pop/test_popwatch::many_parked_notifications_look_at_a_bounded_number_of_queues_in_a_turn
  security/requests/test_lite_costs::a_message_looks_at_few_of_the_clients_that_have_no_room_for_it
  security/requests/test_lite_costs::the_names_of_one_subscription_are_taken_and_left_in_slices
  security/requests/test_lite_costs::subscriptions_are_forgotten_in_slices
  security/requests/test_lite_costs::full_dispatches_that_are_due_together_come_one_after_another
  security/requests/test_lite_costs::news_of_clients_that_do_not_ask_move_in_slices
  security/requests/test_lite_costs::a_pop_looks_at_a_bounded_number_of_queues_without_messages_and_then_goes_on
  unit/server/test_http_stored_messages::large_records_are_decoded_one_at_a_time_beside_the_loop
- decompression is capped by size and ratio, in the broker, clients and Spark
  security/requests/test_inflate::a_body_becomes_no_more_than_its_limits
  security/requests/test_inflate::a_consumer_passes_sixty_bombs
  security/spark/test_spark_inflate::sixty_bombs_become_nulls_or_an_error_that_says_what_to_do
- JSON: depth, references, long numbers
  security/requests/test_json::deep_nesting_is_refused_as_such
- one validator of names; no name becomes a path but through it
  security/requests/test_names::every_text_of_a_header_or_body_is_a_name_or_declared_free
  security/requests/test_names::a_path_from_names_lies_below_its_directory
  security/requests/test_names::no_path_is_made_of_a_name_by_hand
- clients and executors trust no broker
  security/store/test_local_reads::a_hostile_broker_has_no_file_opened
  security/store/test_local_reads::another_users_store_is_not_read
  security/requests/test_routes::a_broker_that_lies_does_not_take_the_others_along
  security/tables/test_client_tables::what_is_remembered_of_brokers_has_a_bound
  security/tables/test_client_tables::requests_of_a_server_that_reads_no_answer_cost_nothing_more
  security/spark/test_hostile_pulls::records_that_were_not_asked_for_are_refused
  security/requests/test_log_lines::a_brokers_remark_is_no_line_of_the_applications_log
  security/requests/test_terminal::a_store_is_shown_as_text
- fuzzing, ten minutes in all targets, also guided by atheris, with a kept corpus
  security/test_fuzz::its_part_of_ten_minutes
  security/test_fuzz::guided_by_what_code_is_reached
  security/test_fuzz::what_was_found_before_and_a_moment_more
- no pickle of foreign bytes, eval, yaml.load, shell, or assertion that is relied on
  unit/project/test_rules_of_safety::no_module_runs_or_unpickles_what_it_reads_or_relies_on_an_assertion
- published attacks
  security/users/test_known_attacks::cve_2023_33246_settings_start_no_command_and_name_no_file
  security/users/test_known_attacks::cve_2023_37582_a_name_server_writes_no_file_of_a_peers_choice
  security/users/test_known_attacks::cve_2024_23321_no_answer_contains_a_credential
  security/users/test_known_attacks::cve_2023_25194_no_setting_of_a_peer_names_a_class
  security/users/test_known_attacks::cve_2023_46604_no_body_names_a_class
  security/users/test_known_attacks::cve_2021_3127_one_users_rights_open_nothing_of_anothers
  security/users/test_known_attacks::cve_2022_31008_no_page_or_answer_over_http_tells_a_secret_of_replication
  security/users/test_known_attacks::cve_2022_24280_no_peer_chooses_where_a_server_connects
- files are 0600, directories 0700, and no link is followed when one is opened for writing
  security/store/test_store_files::a_broker_lets_nobody_else_read_what_it_stores
  security/store/test_store_files::nothing_is_written_through_a_link
  security/store/test_store_files::a_device_is_not_even_opened
- the units of systemd leave little open
  unit/project/test_systemd_units::it_leaves_little_open
# Audit
- who did what to what from where, in a private, rotating file, with a limit of lines; metrics by decision
  unit/auth/test_auditlog::lines_are_one_object_each_and_limited
  unit/auth/test_auditlog::files_are_rotated_and_private
  security/users/test_auth::decisions_are_told
  security/users/test_http_users::everything_is_in_the_audit_log_and_no_secret_is
  security/sockets/test_replication_port::who_leaves_without_a_proof_is_audited_once
  security/sockets/test_replication_port::who_is_refused_or_silent_is_audited_and_counted
"""
"""Titles; what is shown, what of it is not there yet, and the tests that show it."""


def parsed(lines: Iterable[str]) -> dict[str, list[Shown]]:
    shown: dict[str, list[Shown]] = {}
    rows: list[Shown] = []
    for line in lines:
        text = line.strip()
        if line.startswith("# "):
            rows = shown[text[2:]] = []
        elif line.startswith("- "):
            rows.append(Shown(text[2:], ()))
        elif "::" in text:
            rows[-1] = rows[-1]._replace(tests=(*rows[-1].tests, text))
        elif rows[-1].lacks or text.startswith("not yet: "):
            lacks = f"{rows[-1].lacks} {text.removeprefix('not yet: ')}".strip()
            rows[-1] = rows[-1]._replace(lacks=lacks)
        else:
            rows[-1] = rows[-1]._replace(what=f"{rows[-1].what} {text}")
    return shown


SHOWN = parsed(LIST.splitlines())


def shown_table() -> str:
    lines = ["\n## What is shown by which test\n"]
    for title, rows in SHOWN.items():
        lines.append(f"\n### {title}\n\n")
        for row in rows:
            names = "; ".join(f"`{test.replace('::', '.py::test_')}`" for test in row.tests)
            text = f"- {row.what}{row.lacks and f' (not yet: {row.lacks})'}: {names}"
            lines.append(textwrap.fill(text, 340, subsequent_indent="  ", break_long_words=False) + "\n")
    return "".join(lines)
