package main

import "strings"

// The model of a dashboard, as far as it is used: https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/
type (
	// board is a dashboard.
	board struct {
		UID           string   `json:"uid"`
		Title         string   `json:"title"`
		Description   string   `json:"description"`
		Tags          []string `json:"tags"`
		SchemaVersion int      `json:"schemaVersion"`
		Version       int      `json:"version"`
		Editable      bool     `json:"editable"`
		GraphTooltip  int      `json:"graphTooltip"` // 1: one cursor in all panels
		Refresh       string   `json:"refresh"`
		Timezone      string   `json:"timezone"`
		Time          span     `json:"time"`
		Templating    struct {
			List []variable `json:"list"`
		} `json:"templating"`
		Panels []panel `json:"panels"`
	}
	span struct {
		From string `json:"from"`
		To   string `json:"to"`
	}
	variable struct {
		Name       string      `json:"name"`
		Label      string      `json:"label"`
		Type       string      `json:"type"`
		Query      string      `json:"query"`
		Datasource *datasource `json:"datasource,omitempty"`
		Refresh    int         `json:"refresh,omitempty"` // 2: when the time range changes
		Sort       int         `json:"sort,omitempty"`    // 1: by name
		Multi      bool        `json:"multi"`
		IncludeAll bool        `json:"includeAll"`
	}
	datasource struct {
		Type string `json:"type"`
		UID  string `json:"uid"`
	}
	place struct {
		H int `json:"h"`
		W int `json:"w"`
		X int `json:"x"`
		Y int `json:"y"`
	}
	panel struct {
		ID          int            `json:"id"`
		Type        string         `json:"type"`
		Title       string         `json:"title"`
		Description string         `json:"description,omitempty"`
		GridPos     place          `json:"gridPos"`
		Collapsed   *bool          `json:"collapsed,omitempty"` // of a row
		Panels      []panel        `json:"panels,omitempty"`    // of a collapsed row
		Datasource  *datasource    `json:"datasource,omitempty"`
		Targets     []target       `json:"targets,omitempty"`
		FieldConfig *fieldConfig   `json:"fieldConfig,omitempty"`
		Options     map[string]any `json:"options,omitempty"`
	}
	target struct {
		RefID        string      `json:"refId"`
		Datasource   *datasource `json:"datasource"`
		Expr         string      `json:"expr"`
		LegendFormat string      `json:"legendFormat"`
		Instant      bool        `json:"instant,omitempty"`
		Range        bool        `json:"range,omitempty"`
	}
	fieldConfig struct {
		Defaults  fieldDefaults `json:"defaults"`
		Overrides []any         `json:"overrides"`
	}
	fieldDefaults struct {
		Unit       string         `json:"unit"`
		Min        *float64       `json:"min,omitempty"`
		Decimals   *int           `json:"decimals,omitempty"`
		Color      map[string]any `json:"color,omitempty"`
		Custom     map[string]any `json:"custom,omitempty"`
		Thresholds *thresholds    `json:"thresholds,omitempty"`
	}
	thresholds struct {
		Mode  string      `json:"mode"`
		Steps []threshold `json:"steps"`
	}
	threshold struct {
		Color string   `json:"color"`
		Value *float64 `json:"value"` // null: from the smallest on
	}
)

// prometheus is the datasource that the variable of that name selects.
var prometheus = &datasource{"prometheus", "${datasource}"}

// query is an expression with a legend. In it, {} and {, stand for the selector of job and instance.
type query struct{ expr, legend string }

// selected puts the selector of job and instance in the place of {} and {,.
func selected(expr string) string {
	const selector = `job=~"$job", instance=~"$instance"`
	return strings.NewReplacer("{}", "{"+selector+"}", "{,", "{"+selector+",").Replace(expr)
}

// section is a row of panels. Grafana calls it a row.
type section struct {
	title  string
	panels []spec
}

// spec is what a panel shows. Its type is stat, state-timeline or timeseries, the default.
type spec struct {
	title, description, unit string
	kind                     string
	width                    int // of 24; 0: 8
	stacked                  bool
	bad                      string // stat: red when the value is above or below, "> 0" or "< 604800"
	queries                  []query
}

const (
	statHeight, chartHeight, rowWidth = 4, 8, 24
	green, red                        = "green", "red"
)

// panels places sections one below the other.
func panels(sections []section) (all []panel) {
	id, y := 0, 0
	for _, s := range sections {
		id++
		open := false
		all = append(all, panel{ID: id, Type: "row", Title: s.title, GridPos: place{1, rowWidth, 0, y}, Collapsed: &open})
		y++
		x, height := 0, 0
		for _, p := range s.panels {
			id++
			one := p.panel(id)
			if x+one.GridPos.W > rowWidth || height != 0 && height != one.GridPos.H {
				x, y = 0, y+height
			}
			one.GridPos.X, one.GridPos.Y, height = x, y, one.GridPos.H
			x += one.GridPos.W
			all = append(all, one)
		}
		y += height
	}
	return all
}

func (s spec) panel(id int) panel {
	p := panel{
		ID: id, Type: s.kind, Title: s.title, Description: s.description, Datasource: prometheus,
		GridPos:     place{H: chartHeight, W: s.width},
		FieldConfig: &fieldConfig{Defaults: fieldDefaults{Unit: s.unit}, Overrides: []any{}},
	}
	if p.Type == "" {
		p.Type = "timeseries"
	}
	if p.GridPos.W == 0 {
		p.GridPos.W = 8
	}
	d := &p.FieldConfig.Defaults
	switch p.Type {
	case "stat":
		p.GridPos.H = statHeight
		d.Color, d.Thresholds = map[string]any{"mode": "thresholds"}, s.thresholds()
		p.Options = map[string]any{"colorMode": "background", "graphMode": "none", "textMode": "auto", "reduceOptions": map[string]any{"calcs": []string{"lastNotNull"}}}
	case "state-timeline":
		d.Color = map[string]any{"mode": "thresholds"}
		d.Thresholds = s.thresholds()
		p.Options = map[string]any{"showValue": "never", "mergeValues": true, "legend": map[string]any{"showLegend": false}}
	default:
		zero := 0.0
		d.Min, d.Color = &zero, map[string]any{"mode": "palette-classic"}
		d.Custom = map[string]any{"lineWidth": 1, "fillOpacity": 10, "showPoints": "never"}
		if s.stacked {
			d.Custom["stacking"], d.Custom["fillOpacity"] = map[string]any{"mode": "normal"}, 40
		}
		p.Options = map[string]any{"legend": map[string]any{"displayMode": "list", "placement": "bottom", "showLegend": true}, "tooltip": map[string]any{"mode": "multi", "sort": "desc"}}
	}
	for i, q := range s.queries {
		p.Targets = append(p.Targets, target{
			RefID: string(rune('A' + i)), Datasource: prometheus, Expr: selected(q.expr), LegendFormat: q.legend,
			Instant: p.Type == "stat", Range: p.Type != "stat",
		})
	}
	return p
}

// thresholds returns the colours of a stat or a timeline.
func (s spec) thresholds() *thresholds {
	steps := []threshold{{Color: green}}
	way, text, bounded := strings.Cut(s.bad, " ")
	if bounded {
		bound := number(text)
		if way == "<" {
			steps = []threshold{{Color: red}, {green, &bound}}
		} else {
			bound += 0.001
			steps = append(steps, threshold{red, &bound})
		}
	}
	return &thresholds{"absolute", steps}
}
