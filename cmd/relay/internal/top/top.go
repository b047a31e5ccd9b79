// Package top shows a relay on one screen that it updates: readiness, upstreams, clients and the newest events.
//
// The package must not know how the data is read from a relay, or what decides a state.
package top

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"meshrelay/cmd/relay/internal/cliview"
)

// Fetch reads a Snapshot from a relay. After a failure, the Snapshot has Err.
type Fetch func(ctx context.Context) Snapshot

// Once returns one screen of 40 lines as text. A width of 0 means 120.
func Once(s Snapshot, width int) string {
	f := frame{width: width, order: ByState}
	return cliview.Plain(strings.Join(f.draw(s), "\n") + "\n")
}

// Options are the settings of Run.
type Options struct {
	In  io.Reader
	Out io.Writer
	// Every is the pause between two calls of Fetch.
	Every time.Duration
	// Colors is set when the terminal shows colors.
	Colors bool
	// Fetch is called from one goroutine at a time.
	Fetch Fetch
}

// Run shows the screen until ctx ends or the user quits.
func Run(ctx context.Context, o Options) error {
	m := newModel(ctx, o)
	_, err := tea.NewProgram(m, tea.WithContext(ctx), tea.WithInput(o.In), tea.WithOutput(o.Out)).Run()
	if errors.Is(err, tea.ErrProgramKilled) || errors.Is(err, context.Canceled) || errors.Is(err, tea.ErrInterrupted) {
		return nil // ctx ended, or the user interrupted it
	}
	return err
}

// model is the state of the screen. Its methods run one at a time.
type model struct {
	ctx     context.Context // the context of Run, for tea.Cmds, which get none
	o       Options
	frame   frame
	last    Snapshot
	painter *strings.Replacer
}

// due is the message that the next Snapshot is to be fetched.
type due struct{}

func newModel(ctx context.Context, o Options) model {
	return model{ctx: ctx, o: o, frame: frame{order: ByState, keys: true}, painter: strings.NewReplacer(cliview.Escapes()...)}
}

// Init implements tea.Model.
func (m model) Init() tea.Cmd { return m.fetch }

func (m model) fetch() tea.Msg { return m.o.Fetch(m.ctx) }

// Update implements tea.Model.
func (m model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case Snapshot:
		if msg.Err != nil { // the last data stays on the screen
			msg.Version, msg.Ready, msg.Upstreams, msg.Clients, msg.Events = m.last.Version, m.last.Ready, m.last.Upstreams, m.last.Clients, m.last.Events
		}
		m.last = msg
		m.frame.chosen = max(0, min(m.frame.chosen, len(msg.Clients)-1))
		return m, tea.Tick(m.o.Every, func(time.Time) tea.Msg { return due{} })
	case due:
		return m, m.fetch
	case tea.WindowSizeMsg:
		m.frame.width, m.frame.height = msg.Width, msg.Height
	case tea.KeyPressMsg:
		return m.key(msg.String())
	}
	return m, nil
}

// key acts on a key.
func (m model) key(name string) (tea.Model, tea.Cmd) {
	orders := map[string]Order{"s": ByState, "n": ByName, "b": ByBytes, "r": ByRejections}
	if order, ok := orders[name]; ok {
		m.frame.order, m.frame.chosen = order, 0
		return m, nil
	}
	switch name {
	case "q", "ctrl+c":
		return m, tea.Quit
	case "up", "k":
		m.frame.chosen = max(0, m.frame.chosen-1)
	case "down", "j":
		m.frame.chosen = max(0, min(len(m.last.Clients)-1, m.frame.chosen+1))
	case "enter":
		m.frame.one = len(m.last.Clients) > 0
	case "esc":
		m.frame.one = false
	}
	return m, nil
}

// View implements tea.Model.
func (m model) View() tea.View {
	text := "reading from the relay..."
	if !m.last.At.IsZero() {
		text = strings.Join(m.frame.draw(m.last), "\n")
	}
	if m.o.Colors {
		text = m.painter.Replace(text)
	} else {
		text = cliview.Plain(text)
	}
	v := tea.NewView(text)
	v.AltScreen = true
	return v
}
