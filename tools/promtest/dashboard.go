package main

import "strconv"

// number returns the number in a text of this file.
func number(text string) float64 {
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		panic(err)
	}
	return n
}

// dashboard returns the dashboard. To add a panel, add a line to a section, and run "make dashboard".
func dashboard() board {
	d := board{
		UID: "meshrelay", Title: "Relay", Tags: []string{"istio", "xds", "meshrelay"}, SchemaVersion: 39, Version: 1, Editable: true, GraphTooltip: 1,
		Description: "Relays for Istio configuration: health, upstreams, what is served, clients, pushes, guard, sinks, replicas, disk, process. Quantiles and shares need the recording rules of deploy/prometheus/rules.yaml.",
		Refresh:     "30s", Timezone: "utc", Time: span{"now-3h", "now"},
	}
	d.Templating.List = []variable{
		{Name: "datasource", Label: "Data source", Type: "datasource", Query: "prometheus"},
		{Name: "job", Label: "Job", Type: "query", Query: "label_values(relay_build_info, job)", Datasource: prometheus, Refresh: 2, Sort: 1, Multi: true, IncludeAll: true},
		{Name: "instance", Label: "Relay", Type: "query", Query: `label_values(relay_build_info{job=~"$job"}, instance)`, Datasource: prometheus, Refresh: 2, Sort: 1, Multi: true, IncludeAll: true},
	}
	d.Panels = panels([]section{health(), sources(), served(), clients(), pushes(), guard(), sinks(), replicas(), disk(), process()})
	return d
}

func health() section {
	stat := func(title, description, unit, bad, expr string) spec {
		return spec{title: title, description: description, unit: unit, kind: "stat", width: 4, bad: bad, queries: []query{{expr, ""}}}
	}
	return section{"Health", []spec{
		stat("Relays", "Relays that answer Prometheus.", "short", "< 1", `count(relay_build_info{})`),
		stat("Upstreams not synced", "Upstreams that some relay does not follow. What they gave is still served.", "short", "> 0",
			`count(min by (upstream) (relay_upstream_state{,state="synced"}) == 0) or vector(0)`),
		stat("Upstreams stale", "Upstreams that some relay has been out of contact with for longer than staleAfter.", "short", "> 0",
			`count(max by (upstream) (relay_upstream_stale{}) == 1) or vector(0)`),
		stat("Deletions held", "Deletions that guards hold. They wait for a decision: relay upstreams --held.", "short", "> 0", `sum(max by (upstream) (relay_upstream_held_deletions{}))`),
		stat("Clients", "Connected clients of all relays.", "short", "", `sum(relay_downstream_clients{})`),
		stat("Clients behind", "Clients that have owed an ACK for more than 30 s.", "short", "> 0", `sum(relay_downstream_clients_behind{})`),
		stat("Convergence, p99", "Time from a change to its acknowledgement by clients, in the slowest relay, over 5 minutes.", "s", "> 5", `max(instance:relay_convergence_seconds:p99_rate5m{})`),
		stat("First certificate to end", "Time until the first certificate of a listener or upstream ends.", "s", "< 604800", `min(relay_certificate_expiry_timestamp_seconds{}) - time()`),
		stat("First token to end", "Time until the first token for an upstream ends. The kubelet renews a token of an hour when some 12 minutes are left.", "s", "< 300", `min(relay_token_expiry_timestamp_seconds{}) - time()`),
		stat("Config", "1 when all relays have loaded their config file, 0 when one could not.", "short", "< 1", `min(relay_config_last_reload_successful{})`),
		stat("State on disk", "1 when all relays can write their state, 0 when one can not.", "short", "< 1", `min(relay_state_healthy{})`),
		stat("Versions", "Versions of the program that run. More than one outside of a rollout is a mistake.", "short", "> 1", `count(count by (version) (relay_build_info{}))`),
	}}
}

func sources() section {
	return section{"Upstreams", []spec{
		{title: "Synced", description: "Whether each upstream is followed. Red: it is not, and what it gave is still served.", unit: "short", kind: "state-timeline", width: 12, bad: "< 1",
			queries: []query{{`min by (upstream) (relay_upstream_state{,state="synced"})`, "{{upstream}}"}}},
		{title: "Other states", description: "Upstreams that are not synced, by relay and state.", unit: "short",
			queries: []query{{`relay_upstream_state{,state!="synced"} == 1`, "{{upstream}} {{state}} in {{instance}}"}}},
		{title: "Refused resources", description: "Resources whose newest content can not be used. Their last good content is served.", unit: "short", queries: []query{{`max by (upstream) (relay_upstream_refused_resources{})`, "{{upstream}}"}}},
		{title: "Over limits", description: "Resources that the limits of an upstream refuse.", unit: "short", queries: []query{{`max by (upstream) (relay_upstream_over_limit_resources{})`, "{{upstream}}"}}},
		{title: "Found clusters", description: "Clusters that the relay has found, by state.", unit: "short", queries: []query{{`max by (clusters, state) (relay_clusters{})`, "{{clusters}} {{state}}"}}},
		{title: "Certificates end in", description: "Time until each certificate of a listener or upstream ends.", unit: "s", queries: []query{{`min by (where) (relay_certificate_expiry_timestamp_seconds{}) - time()`, "{{where}}"}}},
		{title: "Tokens end in", description: "Time until the token for each upstream ends.", unit: "s", queries: []query{{`min by (upstream) (relay_token_expiry_timestamp_seconds{}) - time()`, "{{upstream}}"}}},
	}}
}

func served() section {
	return section{"What is served", []spec{
		{title: "Resources by upstream", description: "Resources mirrored from each upstream, in the relay that has most.", unit: "short", stacked: true, queries: []query{{`max by (upstream) (sum by (upstream, instance) (relay_upstream_resources{}))`, "{{upstream}}"}}},
		{title: "Resources by kind", description: "Resources mirrored from all upstreams, by kind, in the relay that has most.", unit: "short", stacked: true, queries: []query{{`max by (kind) (sum by (kind, instance) (relay_upstream_resources{})) > 0`, "{{kind}}"}}},
		{title: "Left out", description: "Resources that import rules leave out, by reason: relay explain --left-out.", unit: "short", stacked: true, queries: []query{{`max by (reason) (sum by (reason, instance) (relay_upstream_left_out_resources{})) > 0`, "{{reason}}"}}},
		{title: "Difference between relays", description: "Most minus fewest resources that relays have of an upstream. More than a moment above 0: see RelayReplicasServeDifferently.", unit: "short",
			queries: []query{{`max by (upstream) (sum by (upstream, instance) (relay_upstream_resources{})) - min by (upstream) (sum by (upstream, instance) (relay_upstream_resources{}))`, "{{upstream}}"}}},
	}}
}

func clients() section {
	return section{"Clients", []spec{
		{title: "Connected", description: "Connected clients, by relay and protocol.", unit: "short", stacked: true, queries: []query{{`relay_downstream_clients{}`, "{{instance}} {{protocol}}"}}},
		{title: "Behind", description: "Clients that have owed an ACK for more than 30 s: relay clients names them.", unit: "short", queries: []query{{`relay_downstream_clients_behind{}`, "{{instance}}"}}},
		{title: "Refused", description: "Connections, streams and requests over a limit, per second, by reason.", unit: "cps", queries: []query{{`sum by (reason) (rate(relay_downstream_refused_total{}[$__rate_interval])) > 0`, "{{reason}}"}}},
		{title: "Ended with an error", description: "Streams ended with an error of the client's making, per second, by gRPC code.", unit: "cps", queries: []query{{`sum by (code) (rate(relay_downstream_streams_refused_total{}[$__rate_interval]))`, "{{code}}"}}},
		{title: "Delayed requests", description: "Requests that waited because their client sent them too fast, per second.", unit: "reqps", queries: []query{{`sum by (instance) (rate(relay_downstream_requests_delayed_total{}[$__rate_interval]))`, "{{instance}}"}}},
	}}
}

func pushes() section {
	return section{"Pushes and acknowledgements", []spec{
		{title: "Convergence, p99", description: "From a change being noticed to its acknowledgement by a client: the sum of the next two.", unit: "s", queries: []query{{`instance:relay_convergence_seconds:p99_rate5m{}`, "{{instance}}"}}},
		{title: "Time to push", description: "From a change being noticed to the response being handed to the client's transport.", unit: "s",
			queries: []query{{`instance:relay_push_latency_seconds:p50_rate5m{}`, "p50 {{instance}}"}, {`instance:relay_push_latency_seconds:p99_rate5m{}`, "p99 {{instance}}"}}},
		{title: "Time to acknowledge", description: "From a response to the client's ACK or NACK.", unit: "s",
			queries: []query{{`instance:relay_ack_latency_seconds:p50_rate5m{}`, "p50 {{instance}}"}, {`instance:relay_ack_latency_seconds:p99_rate5m{}`, "p99 {{instance}}"}}},
		{title: "Until all clients have a change, p99", description: "From the oldest change in a push to the ACK of the last client that was connected.", unit: "s",
			queries: []query{{`histogram_quantile(0.99, sum by (instance, le) (rate(relay_distribution_seconds_bucket{}[$__rate_interval])))`, "{{instance}}"}}},
		{title: "Responses", description: "Responses sent to clients, per second, by kind.", unit: "reqps", stacked: true, queries: []query{{`sum by (kind) (rate(relay_downstream_pushes_total{}[$__rate_interval])) > 0`, "{{kind}}"}}},
		{title: "Bytes", description: "Encoded bytes of these responses, per second, by kind.", unit: "Bps", stacked: true, queries: []query{{`sum by (kind) (rate(relay_downstream_push_bytes_total{}[$__rate_interval])) > 0`, "{{kind}}"}}},
		{title: "Answers", description: "ACKs and NACKs of clients, per second.", unit: "reqps",
			queries: []query{{`sum(rate(relay_downstream_acks_total{}[$__rate_interval]))`, "ACK"}, {`sum(rate(relay_downstream_nacks_total{}[$__rate_interval]))`, "NACK"}}},
		{title: "Rejected", description: "Share of the answers that are NACKs.", unit: "percentunit", queries: []query{{`instance:relay_nacks:ratio_rate5m{}`, "{{instance}}"}}},
		{title: "CPU of pushing", description: "Share of the CPUs of the relay that pushing takes: half at most.", unit: "percentunit", queries: []query{{`instance:relay_push_busy:ratio_rate5m{}`, "{{instance}}"}}},
		{title: "Pushes that waited", description: "Pushes that had to wait, per second, by reason: share, backlog, burst.", unit: "cps", queries: []query{{`sum by (reason) (rate(relay_push_delayed_total{}[$__rate_interval]))`, "{{reason}}"}}},
	}}
}

func guard() section {
	return section{"Guard", []spec{
		{title: "Held deletions", description: "Deletions that the guard of an upstream holds, by relay: relay upstreams --held.", unit: "short", queries: []query{{`relay_upstream_held_deletions{} > 0`, "{{upstream}} in {{instance}}"}}},
		{title: "Frozen", description: "Upstreams that an operator has frozen, by relay. All relays should agree.", unit: "short", queries: []query{{`relay_upstream_frozen{} > 0`, "{{upstream}} in {{instance}}"}}},
		{title: "Expired", description: "Resources that are not served because their upstream is out of contact.", unit: "short", queries: []query{{`max by (upstream) (relay_upstream_expired_resources{}) > 0`, "{{upstream}}"}}},
	}}
}

func sinks() section {
	return section{"Sinks", []spec{
		{title: "Written by", description: "Whether some relay writes for each sink. Red: none does. A sink that is frozen, was promoted, or only tells the difference is left out.", unit: "short", kind: "state-timeline", width: 12, bad: "< 1",
			queries: []query{{`max by (sink) (relay_sink_leader{}) unless max by (sink) (relay_sink_suspended{}) == 1`, "{{sink}}"}}},
		{title: "Since all was written", description: "Time since the cluster of each sink had all that the sink writes: RPO of the site. A sink that is not to write is left out.", unit: "s", width: 12,
			queries: []query{{`time() - (max by (sink) (relay_sink_last_complete_timestamp_seconds{}) > 0) unless max by (sink) (relay_sink_suspended{}) == 1`, "{{sink}}"}}},
		{title: "Objects not written", description: "Objects whose fields others own, which others have, or which the cluster refuses: relay sink.", unit: "short",
			queries: []query{{`max by (sink) (relay_sink_conflicts{})`, "{{sink}} conflict"}, {`max by (sink) (relay_sink_foreign{})`, "{{sink}} foreign"}, {`max by (sink) (relay_sink_refused{})`, "{{sink}} refused"}}},
		{title: "Deletions held by sinks", description: "Deletions that the guard of each sink holds until a person decides: relay release sink/NAME.", unit: "short", queries: []query{{`max by (sink) (relay_sink_held_deletions{})`, "{{sink}}"}}},
		{title: "Drift of sinks", description: "Changes and deletions of objects of sinks by others, per second.", unit: "cps", queries: []query{{`sum by (sink) (rate(relay_sink_drift_total{}[$__rate_interval]))`, "{{sink}}"}}},
	}}
}

func replicas() section {
	return section{"Replicas", []spec{
		{title: "Orders of replicas", description: "Whether each relay reads the orders of all replicas. Red: it does not, and takes only freeze.", unit: "short", kind: "state-timeline", bad: "< 1", queries: []query{{`relay_orders_reachable{}`, "{{instance}}"}}},
		{title: "Orders not in force", description: "Upstreams whose order is not in force in each relay: relay status has the reasons.", unit: "short", queries: []query{{`relay_orders_not_in_force{}`, "{{instance}}"}}},
	}}
}

func disk() section {
	return section{"Disk", []spec{
		{title: "Files set aside", description: "Files of the state that could not be used and are still there.", unit: "short", queries: []query{{`relay_state_set_aside_files{}`, "{{instance}}"}}},
	}}
}

func process() section {
	return section{"Process", []spec{
		{title: "CPU", description: "CPUs that each relay uses.", unit: "short", queries: []query{{`rate(process_cpu_seconds_total{}[$__rate_interval])`, "{{instance}}"}}},
		{title: "Memory", description: "Resident memory, and the heap in use.", unit: "bytes", queries: []query{{`process_resident_memory_bytes{}`, "resident {{instance}}"}, {`go_memstats_heap_inuse_bytes{}`, "heap {{instance}}"}}},
		{title: "Goroutines", description: "Goroutines of each relay: about five for each client.", unit: "short", queries: []query{{`go_goroutines{}`, "{{instance}}"}}},
		{title: "Open files", description: "Share of the file descriptors in use. Each client takes one.", unit: "percentunit", queries: []query{{`process_open_fds{} / process_max_fds{}`, "{{instance}}"}}},
		{title: "Garbage collection", description: "Longest pause of the garbage collector lately.", unit: "s", queries: []query{{`go_gc_duration_seconds{,quantile="1"}`, "{{instance}}"}}},
		{title: "Panics", description: "Bugs that were met and contained since the start, by place. Report the stack in the log.", unit: "short",
			queries: []query{{`sum(relay_downstream_panics_total{})`, "streams and pushes"}, {`sum(relay_merge_panics_total{})`, "merge"}, {`sum(relay_upstream_panics_total{})`, "upstreams"}}},
	}}
}
