package main

// alertCase is one cause of an alert.
type alertCase struct {
	alert, bad string
	begins     int
	labels     string
	quiet      string
}

// cases has series for each alert and each of its causes, in the notation of Prometheus' tests: 1x4 is five samples of 1,
// a minute apart. With bad, the condition begins in the minute begins, and the alert has labels. With quiet, the alert
// never fires.
var cases = []alertCase{
	{"RelayUpstreamNotSynced", `
		relay_upstream_state{upstream="east",state="synced",pod="a"} 1x4 0x60
		relay_upstream_state{upstream="east",state="synced",pod="b"} 1x60
		relay_upstream_state{upstream="west",state="synced",pod="a"} 1x60`, 5, `{severity="warning", upstream="east"}`, `
		relay_upstream_state{upstream="east",state="synced",pod="a"}    1x4 0x4 1x60
		relay_upstream_state{upstream="east",state="connecting",pod="a"} 0x4 1x4 0x60`},
	{"RelayUpstreamNotSynced", `
		relay_upstream_state{upstream="east",state="denied",pod="a"} 0x4 1x60
		relay_upstream_state{upstream="east",state="denied",pod="b"} 0x60`, 5, `{severity="critical", state="denied", upstream="east"}`, `
		relay_upstream_state{upstream="east",state="denied",pod="a"} 0x4 1x4 0x60
		relay_upstream_state{upstream="east",state="failed",pod="a"} 1x60`},
	{"RelayCredentialExpires", `
		relay_certificate_expiry_timestamp_seconds{where="upstream east",pod="a"} 605099x60
		relay_certificate_lifetime_seconds{where="upstream east",pod="a"}         7776000x60`, 5, `{severity="warning", where="upstream east"}`, `
		relay_certificate_expiry_timestamp_seconds{where="listener :15012",pod="a"} 691200x60
		relay_certificate_lifetime_seconds{where="listener :15012",pod="a"}         7776000x60
		relay_certificate_expiry_timestamp_seconds{where="upstream east",pod="a"}   36000x60
		relay_certificate_lifetime_seconds{where="upstream east",pod="a"}           86400x60`},
	{"RelayCredentialExpires", `
		relay_certificate_expiry_timestamp_seconds{where="listener :15012",pod="a"} 86399x60
		relay_certificate_lifetime_seconds{where="listener :15012",pod="a"}         7776000x60`, 0, `{severity="critical", where="listener :15012"}`, `
		relay_certificate_expiry_timestamp_seconds{where="upstream east",pod="a"}   12600x60
		relay_certificate_lifetime_seconds{where="upstream east",pod="a"}           86400x60`},
	{"RelayCredentialExpires", `
		relay_token_expiry_timestamp_seconds{upstream="east",pod="a"} 660x60
		relay_token_lifetime_seconds{upstream="east",pod="a"}         3600x60`, 5, `{severity="critical", upstream="east"}`, `
		relay_token_expiry_timestamp_seconds{upstream="east",pod="a"} 1080x9 4680x60
		relay_token_lifetime_seconds{upstream="east",pod="a"}         3600x60
		relay_token_expiry_timestamp_seconds{upstream="west",pod="a"} 691200x60`},
	{"RelayUpstreamStale", `
		relay_upstream_stale{upstream="east",pod="a"} 0x4 1x60
		relay_upstream_stale{upstream="east",pod="b"} 0x60`, 5, `{severity="warning", upstream="east"}`, `
		relay_upstream_stale{upstream="east",pod="a"} 0x4 1x4 0x60`},
	{"RelayUpstreamStale", `
		relay_upstream_expired_resources{upstream="east",pod="a"} 0x4 3x60`, 5, `{severity="warning", upstream="east"}`, `
		relay_upstream_expired_resources{upstream="east",pod="a"} 0x4 3x4 0x60`},
	{"RelayHoldsDeletions", `
		relay_upstream_held_deletions{upstream="east",pod="a"} 0x4 40x60
		relay_upstream_held_deletions{upstream="west",pod="a"} 0x60`, 5, `{severity="critical", upstream="east"}`, `
		relay_upstream_held_deletions{upstream="east",pod="a"} 0x60`},
	{"RelayReplicasHoldDifferently", `
		relay_upstream_held_deletions{upstream="east",pod="a"} 0x4 40x60
		relay_upstream_held_deletions{upstream="east",pod="b"} 0x60
		relay_upstream_frozen{upstream="west",pod="a"}         1x60
		relay_upstream_frozen{upstream="west",pod="b"}         1x60`, 5, `{severity="warning", upstream="east"}`, `
		relay_upstream_held_deletions{upstream="east",pod="a"} 0x4 40x60
		relay_upstream_held_deletions{upstream="east",pod="b"} 0x4 38x60
		relay_upstream_frozen{upstream="west",pod="a"}         0x4 1x4 0x60
		relay_upstream_frozen{upstream="west",pod="b"}         0x60`},
	{"RelayReplicasServeDifferently", `
		relay_upstream_resources{upstream="east",kind="Gateway",pod="a"} 100x60
		relay_upstream_resources{upstream="east",kind="Gateway",pod="b"} 100x4 90x60`, 14, `{severity="warning", upstream="east"}`, `
		relay_upstream_resources{upstream="east",kind="Gateway",pod="a"} 100x4 90x90
		relay_upstream_resources{upstream="east",kind="Gateway",pod="b"} 100x9 90x90`},
	{"RelayOrdersNotInForce", `
		relay_orders_reachable{pod="a"}    1x4 0x60
		relay_orders_not_in_force{pod="b"} 0x60`, 5, `{severity="warning"}`, `
		relay_orders_reachable{pod="a"}    1x4 0x4 1x60
		relay_orders_not_in_force{pod="b"} 0x60`},
	{"RelaySinkNotWritten", `
		relay_sink_last_complete_timestamp_seconds{sink="dr",pod="a"}   0+60x4 240x90
		relay_sink_last_complete_timestamp_seconds{sink="dr",pod="b"}   0x90
		relay_sink_last_complete_timestamp_seconds{sink="edge",pod="a"} 0+60x90
		relay_sink_leader{sink="dr",pod="a"}           1x90
		relay_sink_leader{sink="dr",pod="b"}           0x90
		relay_sink_leader{sink="edge",pod="a"}         1x90
		relay_sink_suspended{sink="dr",pod="a"}        0x90
		relay_sink_suspended{sink="edge",pod="a"}      0x90
		relay_sink_held_deletions{sink="dr",pod="a"}   0x90
		relay_sink_conflicts{sink="dr",pod="a"}        0x90
		relay_sink_foreign{sink="dr",pod="a"}          0x90
		relay_sink_refused{sink="dr",pod="a"}          0x90`, 35, `{cause="incomplete", severity="warning", sink="dr"}`, `
		relay_sink_last_complete_timestamp_seconds{sink="dr",pod="a"} 0+60x4 240x28 1980+60x90
		relay_sink_leader{sink="dr",pod="a"}           1x90
		relay_sink_suspended{sink="dr",pod="a"}        0x90
		relay_sink_last_complete_timestamp_seconds{sink="held",pod="a"} 0x90
		relay_sink_leader{sink="held",pod="a"}         1x90
		relay_sink_suspended{sink="held",pod="a"}      0x90
		relay_sink_held_deletions{sink="held",pod="a"} 7x90
		relay_sink_conflicts{sink="held",pod="a"}      0x90
		relay_sink_foreign{sink="held",pod="a"}        0x90
		relay_sink_refused{sink="held",pod="a"}        0x90
		relay_sink_last_complete_timestamp_seconds{sink="new",pod="a"}      _x40 0x13 3240+60x90
		relay_sink_leader{sink="new",pod="a"}          _x40 0x2 1x90
		relay_sink_last_complete_timestamp_seconds{sink="restarted",pod="a"} 0+60x60 0x9 4260+60x90
		relay_sink_leader{sink="restarted",pod="a"}    1x60 0x9 1x90
		relay_sink_last_complete_timestamp_seconds{sink="promoted",pod="a"} 0x90
		relay_sink_leader{sink="promoted",pod="a"}     0x90
		relay_sink_suspended{sink="promoted",pod="a"}  1x90`},
	{"RelaySinkNotWritten", `
		relay_sink_leader{sink="dr",pod="a"}    1x4 0x60
		relay_sink_leader{sink="dr",pod="b"}    0x60`, 18, `{cause="incomplete", severity="warning", sink="dr"}`, `
		relay_sink_leader{sink="dr",pod="a"}    1x4 0x60
		relay_sink_leader{sink="dr",pod="b"}    0x17 1x60`},
	{"RelaySinkNotWritten", `
		relay_sink_leader{sink="dr",pod="a"}    0x4 1x60
		relay_sink_leader{sink="dr",pod="b"}    0x60
		relay_sink_unwritten{sink="dr",pod="a"} 0x4 3x60
		relay_sink_unwritten{sink="dr",pod="b"} 0x60`, 5, `{cause="unwritten", severity="warning", sink="dr"}`, `
		relay_sink_leader{sink="dr",pod="a"}    0x60
		relay_sink_leader{sink="dr",pod="b"}    1x60
		relay_sink_unwritten{sink="dr",pod="a"} 0x4 3x60
		relay_sink_unwritten{sink="dr",pod="b"} 0x60`},
	{"RelaySinkHoldsDeletions", `
		relay_sink_held_deletions{sink="dr",pod="a"} 0x4 40x60
		relay_sink_held_deletions{sink="dr",pod="b"} 0x60
		relay_sink_suspended{sink="dr",pod="a"}      0x60`, 5, `{severity="critical", sink="dr"}`, `
		relay_sink_held_deletions{sink="dr",pod="a"}  0x60
		relay_sink_held_deletions{sink="dry",pod="a"} 40x60
		relay_sink_suspended{sink="dry",pod="a"}      1x60`},
	{"RelaySinkObjectsDiffer", `
		relay_sink_conflicts{sink="dr",pod="a"} 0x4 1x60
		relay_sink_foreign{sink="dr",pod="a"}   0x60
		relay_sink_refused{sink="dr",pod="a"}   0x60
		relay_sink_suspended{sink="dr",pod="a"} 0x60`, 5, `{cause="refused", severity="warning", sink="dr"}`, `
		relay_sink_conflicts{sink="dr",pod="a"}       0x4 1x14 0x60
		relay_sink_foreign{sink="dr",pod="a"}         0x4 1x14 0x60
		relay_sink_refused{sink="dr",pod="a"}         0x4 1x14 0x60
		relay_sink_conflicts{sink="promoted",pod="a"} 0x60
		relay_sink_foreign{sink="promoted",pod="a"}   3x60
		relay_sink_refused{sink="promoted",pod="a"}   0x60
		relay_sink_suspended{sink="promoted",pod="a"} 1x60`},
	{"RelaySinkObjectsDiffer", `
		relay_sink_drift_total{sink="dr",pod="a"} 0x4 1x4 2x4 3x4 4x4 5x4 6x4 7x4 8x4 9x60
		relay_sink_drift_total{sink="dr",pod="b"} 7x60`, 20, `{cause="drift", severity="warning", sink="dr"}`, `
		relay_sink_drift_total{sink="dr",pod="a"} 0x4 5000x90`},
	{"RelayUpstreamFrozen", `
		relay_upstream_frozen{upstream="east",instance="10.0.0.1:15014"} 0x4 1x700 stale
		relay_upstream_frozen{upstream="east",instance="10.0.0.2:15014"} _x710 1x800
		relay_upstream_frozen{upstream="east",instance="10.0.0.3:15014"} 0x1500`, 5, `{severity="warning", upstream="east"}`, `
		relay_upstream_frozen{upstream="east",pod="a"} 0x4 1x1438 0x1500`},
	{"RelayRefusesResources", `
		relay_upstream_over_limit_resources{upstream="east",pod="a"} 0x4 7x60`, 5, `{cause="limit", severity="warning", upstream="east"}`, `
		relay_upstream_over_limit_resources{upstream="east",pod="a"} 0x4 7x4 0x60`},
	{"RelayRefusesResources", `
		relay_upstream_refused_resources{upstream="east",pod="a"} 0x4 2x60`, 5, `{cause="content", severity="warning", upstream="east"}`, `
		relay_upstream_refused_resources{upstream="east",pod="a"} 0x4 2x4 0x60`},
	{"RelayServicesWithoutEndpoints", `
		relay_upstream_services_without_endpoints{upstream="east",pod="a"} 0x4 21x60
		relay_upstream_resources{upstream="east",kind="networking.istio.io/ServiceEntry",pod="a"} 100x60
		relay_upstream_resources{upstream="east",kind="networking.istio.io/Gateway",pod="a"} 1000x60
		relay_upstream_synced{upstream="east",pod="a"} 1x60`, 5, `{severity="critical", upstream="east"}`, `
		relay_upstream_services_without_endpoints{upstream="east",pod="a"} 5x60
		relay_upstream_resources{upstream="east",kind="networking.istio.io/ServiceEntry",pod="a"} 6x60
		relay_upstream_synced{upstream="east",pod="a"} 1x60
		relay_upstream_services_without_endpoints{upstream="west",pod="a"} 20x60
		relay_upstream_resources{upstream="west",kind="networking.istio.io/ServiceEntry",pod="a"} 100x60
		relay_upstream_synced{upstream="west",pod="a"} 1x60
		relay_upstream_services_without_endpoints{upstream="gone",pod="a"} 60x60
		relay_upstream_resources{upstream="gone",kind="networking.istio.io/ServiceEntry",pod="a"} 100x60
		relay_upstream_synced{upstream="gone",pod="a"} 0x60`},
	{"RelayStateNotWritten", `
		relay_state_healthy{pod="a"} 1x4 0x60
		relay_state_healthy{pod="b"} 1x60`, 5, `{cause="state", severity="warning"}`, `
		relay_state_healthy{pod="a"} 1x4 0x4 1x60`},
	{"RelayStateNotWritten", `
		relay_state_journal_healthy{pod="a"} 1x4 0x60
		relay_state_journal_healthy{pod="b"} 1x60`, 5, `{cause="journal", severity="warning"}`, `
		relay_state_journal_healthy{pod="a"} 1x4 0x4 1x60`},
	{"RelayStateNotWritten", `
		relay_state_set_aside_files{pod="a"} 0x4 1x60
		relay_state_set_aside_files{pod="b"} 0x60`, 5, `{cause="setAside", severity="warning"}`, `
		relay_state_set_aside_files{pod="a"} 0x4 1x4 0x60`},
	{"RelayConfigNotReloaded", `
		relay_config_last_reload_successful{pod="a"} 1x4 0x60
		relay_config_last_reload_successful{pod="b"} 1x60`, 5, `{severity="warning"}`, `
		relay_config_last_reload_successful{pod="a"} 1x4 0x4 1x60`},
	{"RelayRefusesClients", `
		relay_downstream_refused_total{reason="peer",pod="a"} 0x4 1+1x60
		relay_downstream_refused_total{reason="rate",pod="a"} 5x60`, 5, `{reason="peer", severity="warning"}`, `
		relay_downstream_refused_total{reason="peer",pod="a"} 0x4 1x60`},
	{"RelayClientsRejectResponses", `
		relay_downstream_nacks_total{kind="Gateway",pod="a"}  0x4 1x60
		relay_downstream_nacks_total{kind="Sidecar",pod="a"}  3x60`, 5, `{kind="Gateway", severity="warning"}`, `
		relay_downstream_nacks_total{kind="Gateway",pod="a"} 7x60
		relay_downstream_acks_total{kind="Gateway",pod="a"}  0+100x60`},
	{"RelayClientsBehind", `
		relay_downstream_push_latency_seconds_bucket{le="5",pod="a"}    0x60
		relay_downstream_push_latency_seconds_bucket{le="10",pod="a"}   0x4 1+1x60
		relay_downstream_push_latency_seconds_bucket{le="+Inf",pod="a"} 0x4 1+1x60`, 5, `{cause="push", severity="warning"}`, `
		relay_downstream_push_latency_seconds_bucket{le="5",pod="a"}    0+199x60
		relay_downstream_push_latency_seconds_bucket{le="10",pod="a"}   0+200x60
		relay_downstream_push_latency_seconds_bucket{le="+Inf",pod="a"} 0+200x60`},
	{"RelayClientsBehind", `
		relay_downstream_clients_behind{pod="a"} 0x4 1x60
		relay_downstream_clients_behind{pod="b"} 0x60`, 5, `{cause="behind", severity="warning"}`, `
		relay_downstream_clients_behind{pod="a"} 0x4 2x4 0x60
		relay_downstream_clients_behind{pod="b"} 0x60`},
	{"RelayClientsBehind", `
		relay_downstream_ack_latency_seconds_bucket{le="5",pod="a"}    0x60
		relay_downstream_ack_latency_seconds_bucket{le="10",pod="a"}   0x4 1+1x60
		relay_downstream_ack_latency_seconds_bucket{le="+Inf",pod="a"} 0x4 1+1x60`, 5, `{cause="acknowledgement", severity="warning"}`, `
		relay_downstream_ack_latency_seconds_bucket{le="5",pod="a"}    0+199x60
		relay_downstream_ack_latency_seconds_bucket{le="10",pod="a"}   0+200x60
		relay_downstream_ack_latency_seconds_bucket{le="+Inf",pod="a"} 0+200x60`},
	{"RelayClustersWithoutKubeconfig", `
		relay_clusters{clusters="fleet",state="held",pod="a"} 0x4 2x60`, 5, `{clusters="fleet", severity="critical", state="held"}`, `
		relay_clusters{clusters="fleet",state="held",pod="a"}  0x60
		relay_clusters{clusters="fleet",state="found",pod="a"} 2x60`},
	{"RelayClustersWithoutKubeconfig", `
		relay_clusters{clusters="fleet",state="orphaned",pod="a"} 0x4 2x60`, 5, `{clusters="fleet", severity="warning", state="orphaned"}`, `
		relay_clusters{clusters="fleet",state="orphaned",pod="a"} 0x4 2x4 0x60`},
	{"RelayClustersWithoutKubeconfig", `
		relay_clusters{clusters="fleet",state="refused",pod="a"} 0x4 2x60`, 5, `{clusters="fleet", severity="warning", state="refused"}`, `
		relay_clusters{clusters="fleet",state="refused",pod="a"} 0x4 2x4 0x60`},
	{"RelayClustersWithoutKubeconfig", `
		relay_clusters_readable{clusters="fleet",pod="a"} 1x4 0x60
		relay_clusters_readable{clusters="fleet",pod="b"} 1x60`, 5, `{clusters="fleet", severity="warning", state="unreadable"}`, `
		relay_clusters_readable{clusters="fleet",pod="a"} 1x4 0x4 1x60`},
	{"RelayPanics", `
		relay_downstream_panics_total{pod="a"} 0x60
		relay_merge_panics_total{pod="a"}      0x4 1x60`, 5, `{severity="critical"}`, `
		relay_downstream_panics_total{pod="a"} 3x60
		relay_merge_panics_total{pod="a"}      3x60`},
	{"RelayNotAsDeployed", `
		process_cpu_seconds_total{job="relay",instance="a"} 0+10x4 0+10x4 0+10x4 0+10x60
		relay_build_info{job="relay",instance="a"}          1x9 stale _x2 1x60
		relay_build_info{job="relay",instance="b"}          1x60`, 15, `{cause="restarts", severity="warning"}`, `
		process_cpu_seconds_total{job="relay",instance="a"} 0+10x4 0+10x4 0+10x60
		process_cpu_seconds_total{job="other",instance="a"} 0+10x4 0+10x4 0+10x4 0+10x60
		relay_build_info{job="relay",instance="a"}          1x60
		relay_build_info{job="relay",instance="b"}          1x60`},
	{"RelayNotAsDeployed", `
		relay_build_info{version="1",pod="a"} 1x4 stale`, 5, `{cause="absent", severity="critical"}`, `
		relay_build_info{version="1",pod="a"} 1x4 stale _x3 1x60
		relay_build_info{version="1",pod="b"} 1x4 stale _x3 1x60`},
	{"RelayNotAsDeployed", `
		relay_build_info{version="1",pod="a"} 1x60
		relay_build_info{version="1",pod="b"} 1x4 stale`, 15, `{cause="alone", severity="warning"}`, `
		relay_build_info{version="1",pod="a"} 1x90
		relay_build_info{version="1",pod="b"} 1x4 stale _x13 1x90`},
	{"RelayNotAsDeployed", `
		relay_build_info{version="1",pod="a"} 1x90
		relay_build_info{version="2",pod="b"} _x5 1x90`, 59, `{cause="versions", severity="warning"}`, `
		relay_build_info{version="1",pod="a"} 1x63 stale
		relay_build_info{version="2",pod="a"} _x65 1x200
		relay_build_info{version="2",pod="b"} _x5 1x200`},
}

// healthy has the series of two replicas that follow two upstreams and serve clients. Changes, reconnections and the
// rotation of tokens are part of it.
const healthy = `
	relay_build_info{version="1",pod="a"} 1x200
	relay_build_info{version="1",pod="b"} 1x200
	relay_upstream_state{upstream="east",state="synced",pod="a"}       1x30 0x2 1x200
	relay_upstream_state{upstream="east",state="disconnected",pod="a"} 0x30 1x2 0x200
	relay_upstream_state{upstream="east",state="denied",pod="a"}       0x200
	relay_upstream_state{upstream="east",state="failed",pod="a"}       0x200
	relay_upstream_state{upstream="east",state="synced",pod="b"}       1x200
	relay_upstream_synced{upstream="east",pod="a"} 1x200
	relay_upstream_synced{upstream="east",pod="b"} 1x200
	relay_upstream_stale{upstream="east",pod="a"} 0x200
	relay_upstream_stale{upstream="east",pod="b"} 0x200
	relay_upstream_expired_resources{upstream="east",pod="a"} 0x200
	relay_upstream_held_deletions{upstream="east",pod="a"} 0x200
	relay_upstream_held_deletions{upstream="east",pod="b"} 0x200
	relay_upstream_frozen{upstream="east",pod="a"} 0x200
	relay_upstream_frozen{upstream="east",pod="b"} 0x200
	relay_upstream_resources{upstream="east",kind="Gateway",pod="a"} 100x50 101+1x200
	relay_upstream_resources{upstream="east",kind="Gateway",pod="b"} 100x51 101+1x200
	relay_upstream_over_limit_resources{upstream="east",pod="a"} 0x200
	relay_upstream_refused_resources{upstream="east",pod="a"} 0x200
	relay_certificate_expiry_timestamp_seconds{where="listener :15012",pod="a"} 2592000x200
	relay_certificate_lifetime_seconds{where="listener :15012",pod="a"}         7776000x200
	relay_certificate_expiry_timestamp_seconds{where="upstream east",pod="a"}   43200x200
	relay_certificate_lifetime_seconds{where="upstream east",pod="a"}           86400x200
	relay_token_expiry_timestamp_seconds{upstream="east",pod="a"} 3600x47 6480x47 9360x47 12240x60
	relay_token_lifetime_seconds{upstream="east",pod="a"}         3600x200
	relay_state_healthy{pod="a"} 1x200
	relay_state_journal_healthy{pod="a"} 1x200
	relay_state_set_aside_files{pod="a"} 0x200
	relay_config_last_reload_successful{pod="a"} 1x200
	relay_downstream_refused_total{reason="peer",pod="a"} 0x200
	relay_downstream_nacks_total{kind="Gateway",pod="a"} 0x200
	relay_downstream_acks_total{kind="Gateway",pod="a"} 0+20x200
	relay_downstream_push_latency_seconds_bucket{le="0.1",pod="a"}  0+20x200
	relay_downstream_push_latency_seconds_bucket{le="+Inf",pod="a"} 0+20x200
	relay_downstream_ack_latency_seconds_bucket{le="0.1",pod="a"}   0+20x200
	relay_downstream_ack_latency_seconds_bucket{le="+Inf",pod="a"}  0+20x200
	relay_downstream_clients_behind{pod="a"} 0x200
	relay_downstream_panics_total{pod="a"} 0x200
	relay_clusters{clusters="fleet",state="found",pod="a"}    3x200
	relay_clusters{clusters="fleet",state="held",pod="a"}     0x200
	relay_clusters{clusters="fleet",state="orphaned",pod="a"} 0x200
	relay_clusters{clusters="fleet",state="refused",pod="a"}  0x200
	relay_clusters_readable{clusters="fleet",pod="a"} 1x200
	relay_orders_reachable{pod="a"} 1x60 0x2 1x200
	relay_orders_not_in_force{pod="a"} 0x200
	relay_sink_leader{sink="dr",pod="a"}    1x60 0x200
	relay_sink_leader{sink="dr",pod="b"}    0x61 1x200
	relay_sink_suspended{sink="dr",pod="a"} 0x200
	relay_sink_suspended{sink="dr",pod="b"} 0x200
	relay_sink_last_complete_timestamp_seconds{sink="dr",pod="a"} 0+60x60 3600x200
	relay_sink_last_complete_timestamp_seconds{sink="dr",pod="b"} 0x70 4260+60x200
	relay_sink_held_deletions{sink="dr",pod="a"} 0x200
	relay_sink_conflicts{sink="dr",pod="a"} 0x60 1x2 0x200
	relay_sink_foreign{sink="dr",pod="a"}   0x200
	relay_sink_refused{sink="dr",pod="a"}   0x200
	relay_sink_drift_total{sink="dr",pod="a"} 0x60 1x200`
