package http2frames

import (
	"errors"
	"testing"
)

// TestTinyFramesAreBounded: what honest peers send is not.
func TestTinyFramesAreBounded(t *testing.T) {
	data := func(n int) Frame { return Frame{Type: Data, Length: n} }
	send := func(message []Frame, messages int) (frames int, err error) {
		tiny := Tiny{Most: 1024}
		for range messages {
			for _, f := range message {
				if err = tiny.Frame(f); err != nil {
					return frames, err
				}
				frames++
			}
			tiny.Message()
		}
		return frames, nil
	}
	many := func(f Frame) (all []Frame) {
		for range 100_000 {
			all = append(all, f)
		}
		return all
	}
	for name, message := range map[string][]Frame{
		"one byte each":                    many(data(1)),
		"empty":                            many(data(0)),
		"padded to the usual size":         many(Frame{Type: Data, Length: 1000, Flags: FlagPadded}),
		"after one that is large":          append([]Frame{data(16 << 10)}, many(data(1))...),
		"each message in many more frames": many(data(1))[:64],
	} {
		if frames, err := send(message, 10_000); !errors.Is(err, ErrTiny) || frames > 1500 {
			t.Errorf("%s: %d frames are let through: %v", name, frames, err)
		}
	}
	for name, message := range map[string][]Frame{
		"acknowledgements":                {data(5), data(100), data(0)},
		"what a window of 4 KiB splits":   {data(1), data(1000), data(24), data(1), data(1023), data(2)},
		"a large message":                 many(data(16 << 10)),
		"a large message in small frames": many(data(257)),
		"other frames":                    many(Frame{Type: 1, Length: 1}),
	} {
		if _, err := send(message, 10); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := send(message[:min(len(message), 10)], 10_000); err != nil {
			t.Errorf("%s, many: %v", name, err)
		}
	}
}
