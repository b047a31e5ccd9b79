package config

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The tags of a field define its valid values:
//
//	default:"30s"      the value if the file has none
//	range:"1s 24h"     the smallest and the largest value
//	endless:"never"    the text of an OpenEnded without an end
//	oneof:"a b"        the values of a text
//	path:"file"        a path of a "file" or a "file or directory" that must exist, or of the relay's "own" file
//	pem:"roots"        the content of the file: "roots", a "certificate", the "key" of the
//	                   certificate in the field before
//
// Numbers in tags may end in Ki, Mi or Gi.

// eachField calls f with each set field below v, and the field's path.
func eachField(at string, v reflect.Value, f func(path string, field reflect.StructField, value reflect.Value)) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			eachField(at, v.Elem(), f)
		}
	case reflect.Slice:
		for i := range v.Len() {
			eachField(fmt.Sprintf("%s[%d]", at, i), v.Index(i), f)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			field := v.Type().Field(i)
			path := join(at, yamlName(field))
			if source, ok := v.Field(i).Interface().(Source); ok {
				path = join(at, source.Kind())
			}
			f(path, field, v.Field(i))
			eachField(path, v.Field(i), f)
		}
	}
}

// setDefaults sets the empty fields of a struct and of its inner structs to the defaults in tags.
func setDefaults(v reflect.Value) {
	for i := range v.NumField() {
		field := v.Field(i)
		text, ok := v.Type().Field(i).Tag.Lookup("default")
		switch {
		case field.Kind() == reflect.Struct:
			setDefaults(field)
		case !ok || !field.IsZero():
		case field.Kind() == reflect.String:
			field.SetString(text)
		case field.Kind() == reflect.Bool:
			field.SetBool(text == "true")
		default:
			field.SetInt(tagNumber(text))
		}
	}
}

// tagNumber parses a number or a duration in a tag.
func tagNumber(text string) int64 {
	for i, unit := range []string{"Ki", "Mi", "Gi"} {
		if digits, ok := strings.CutSuffix(text, unit); ok {
			return tagNumber(digits) << (10 * (i + 1))
		}
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		panic(fmt.Sprintf("config: tag %q: %v", text, err)) // which every test would show
	}
	return int64(d)
}

// checkTags checks the value of a field against its tags.
func (v *validator) checkTags(path string, field reflect.StructField, value reflect.Value) {
	if values, ok := field.Tag.Lookup("oneof"); ok {
		allowed := strings.Fields(values)
		v.errorIf(!slices.Contains(allowed, value.String()), path, "%q: want one of %s", value.String(), strings.Join(allowed, ", "))
	}
	if bounds, ok := field.Tag.Lookup("range"); ok {
		low, high, _ := strings.Cut(bounds, " ")
		v.inRange(path, field, value.Int(), tagNumber(low), tagNumber(high))
	}
}

func (v *validator) inRange(path string, field reflect.StructField, n, least, most int64) {
	endless := field.Tag.Get("endless")
	switch {
	case n >= least && n <= most, n == 0 && endless != "":
	case endless != "":
		v.errorf(path, "%v is out of range: %v to %v, or %s", time.Duration(n), time.Duration(least), time.Duration(most), endless)
	case field.Type == durationType:
		v.errorf(path, "%v is out of range: %v to %v", time.Duration(n), time.Duration(least), time.Duration(most))
	default:
		v.errorf(path, "%d is out of range: %d to %d", n, least, most)
	}
}
