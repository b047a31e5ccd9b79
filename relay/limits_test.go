package relay

import (
	"reflect"
	"testing"

	"meshrelay/config"
)

// TestEveryLimitIsTakenOver from the config field of the same name.
func TestEveryLimitIsTakenOver(t *testing.T) {
	var d config.Downstream
	names := reflect.TypeOf(limitsOf(d))
	for i := range names.NumField() {
		f := reflect.ValueOf(&d).Elem().FieldByName(names.Field(i).Name)
		if !f.IsValid() {
			t.Fatalf("the config has no %s", names.Field(i).Name)
		}
		f.SetInt(int64(i + 1))
	}
	got := reflect.ValueOf(limitsOf(d))
	for i := range names.NumField() {
		if got.Field(i).Int() != int64(i+1) {
			t.Errorf("%s is not taken over", names.Field(i).Name)
		}
	}
}
