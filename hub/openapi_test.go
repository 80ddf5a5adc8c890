package hub

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"mime"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// object is any JSON object.
type object = map[string]any

// description is openapi.json, read for tests: the subset of OpenAPI 3.1 that it
// uses, and everything in it by its place.
var description = func() (d object) {
	if err := json.Unmarshal(openAPI, &d); err != nil {
		panic(err)
	}
	return d
}()

// resolve follows a reference inside the description.
func resolve(v any) object {
	o, _ := v.(object)
	ref, ok := o["$ref"].(string)
	if !ok {
		return o
	}
	at := description
	for name := range strings.SplitSeq(strings.TrimPrefix(ref, "#/"), "/") {
		at = at[name].(object)
	}
	return resolve(at)
}

// describedAt finds the operation that describes a request to an escaped path.
func describedAt(method, path string) object {
	if method == http.MethodHead {
		method = http.MethodGet
	}
	for template, item := range description["paths"].(object) {
		pattern := regexp.MustCompile(`\{\w+\}`).ReplaceAllString(strings.Replace(template, "{key}", ".*", 1), "[^/]+")
		if regexp.MustCompile("^" + pattern + "$").MatchString(path) {
			operation, _ := item.(object)[strings.ToLower(method)].(object)
			return operation
		}
	}
	return nil
}

// checkDescribed returns what in a response to a request is not as described.
func checkDescribed(method, path string, status int, header http.Header, body []byte) error {
	operation := describedAt(method, path)
	if operation == nil {
		if status != http.StatusNotFound && status != http.StatusMethodNotAllowed {
			return fmt.Errorf("status %d of a path that is not described", status)
		}
		operation = object{"responses": object{strconv.Itoa(status): object{"$ref": "#/components/responses/Problem"}}}
	}
	response := resolve(operation["responses"].(object)[strconv.Itoa(status)])
	if response == nil {
		return fmt.Errorf("status %d is not declared", status)
	}
	for name := range resolve(response["headers"]) {
		if header.Get(name) == "" {
			return fmt.Errorf("status %d lacks the header %s", status, name)
		}
	}
	content := resolve(response["content"])
	if method == http.MethodHead || content == nil {
		if len(body) > 0 {
			return fmt.Errorf("status %d has a body: %.200s", status, body)
		}
		return nil
	}
	kind, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	media := resolve(content[kind])
	if err != nil || media == nil {
		return fmt.Errorf("content type %q of status %d is not declared", header.Get("Content-Type"), status)
	}
	var v any
	if err := json.Unmarshal(body, &v); err != nil {
		return fmt.Errorf("the body is no JSON: %w", err)
	}
	if err := conforms(v, resolve(media["schema"]), ""); err != nil {
		return fmt.Errorf("%w in %.300s", err, body)
	}
	if code, ok := resolve(v)["code"].(string); ok && kind == "application/problem+json" {
		if want, listed := problems[code]; resolve(v)["status"] != float64(status) || listed && want.status != status {
			return fmt.Errorf("problem %s with status %d", code, status)
		}
	}
	return nil
}

// conforms checks a value against a schema. It is stricter than JSON Schema: a
// member that is not described is an error.
func conforms(v any, schema object, at string) error {
	if want, ok := schema["const"]; ok && v != want {
		return fmt.Errorf("%s is %v, want %v", at, v, want)
	}
	if enum, ok := schema["enum"].([]any); ok && !slices.Contains(enum, v) {
		return fmt.Errorf("%s is %v, which is not listed", at, v)
	}
	switch kind := schema["type"]; v := v.(type) {
	case object:
		if kind != nil && kind != "object" {
			return fmt.Errorf("%s is an object, want %v", at, kind)
		}
		return objectConforms(v, schema, at)
	case []any:
		if kind != nil && kind != "array" {
			return fmt.Errorf("%s is an array, want %v", at, kind)
		}
		for i, element := range v {
			if err := conforms(element, resolve(schema["items"]), fmt.Sprint(at, "/", i)); err != nil {
				return err
			}
		}
	case string:
		if kind != nil && kind != "string" {
			return fmt.Errorf("%s is a string, want %v", at, kind)
		}
	case float64:
		if kind != nil && kind != "number" && !(kind == "integer" && v == math.Trunc(v)) {
			return fmt.Errorf("%s is %v, want %v", at, v, kind)
		}
	case bool:
		if kind != nil && kind != "boolean" {
			return fmt.Errorf("%s is %v, want %v", at, v, kind)
		}
	case nil:
		if kind != nil {
			return fmt.Errorf("%s is null, want %v", at, kind)
		}
	}
	return nil
}

func objectConforms(v, schema object, at string) error {
	for _, name := range asList(schema["required"]) {
		if _, ok := v[name.(string)]; !ok {
			return fmt.Errorf("%s/%s is missing", at, name)
		}
	}
	properties, rest := resolve(schema["properties"]), schema["additionalProperties"]
	for name, value := range v {
		property, known := properties[name]
		if !known && rest == nil && properties != nil {
			return fmt.Errorf("%s/%s is not described", at, name)
		}
		if !known {
			property = rest
		}
		if err := conforms(value, resolve(property), at+"/"+name); err != nil {
			return err
		}
	}
	return nil
}

func asList(v any) []any { list, _ := v.([]any); return list }

// Every route is described, and nothing else is.
func TestRoutesAreDescribed(t *testing.T) {
	s := startServer(t, testOptions(t), nil)
	var routes, described []string
	for pattern := range s.routes() {
		if !strings.HasPrefix(pattern, "OPTIONS ") { // preflights are for browsers
			routes = append(routes, strings.ReplaceAll(pattern, "...}", "}"))
		}
	}
	operations := make(map[string]bool)
	for path, item := range description["paths"].(object) {
		declared := make(map[string]bool)
		for _, p := range asList(item.(object)["parameters"]) {
			declared[resolve(p)["name"].(string)] = true
		}
		for method, operation := range item.(object) {
			if method == "parameters" {
				continue
			}
			described = append(described, strings.ToUpper(method)+" "+path)
			id := operation.(object)["operationId"].(string)
			if operations[id] {
				t.Errorf("two operations are called %s", id)
			}
			operations[id] = true
		}
		for _, name := range regexp.MustCompile(`\{(\w+)\}`).FindAllStringSubmatch(path, -1) {
			if !declared[name[1]] {
				t.Errorf("%s: parameter %s is not described", path, name[1])
			}
		}
	}
	slices.Sort(routes)
	slices.Sort(described)
	if !slices.Equal(routes, described) {
		t.Errorf("routes:\n%s\ndescribed:\n%s", strings.Join(routes, "\n"), strings.Join(described, "\n"))
	}
}

// The parameters of a query are those that the handler knows, and a mutation has
// a body.
func TestParametersAreDescribed(t *testing.T) {
	for pattern, e := range endpoints {
		method, path, _ := strings.Cut(pattern, " ")
		path = "/v1/{db}/rooms/{room}/" + strings.ReplaceAll(path, "...}", "}")
		operation := description["paths"].(object)[path].(object)[strings.ToLower(method)].(object)
		var query []string
		for _, p := range asList(operation["parameters"]) {
			if p := resolve(p); p["in"] == "query" {
				query = append(query, p["name"].(string))
			}
		}
		if !slices.Equal(query, e.query) {
			t.Errorf("%s: described are %v, known are %v", pattern, query, e.query)
		}
		if _, body := operation["requestBody"]; body != (e.class == classMutation) {
			t.Errorf("%s: a body is described: %v", pattern, body)
		}
	}
}

// Every reference leads somewhere, and every component is used.
func TestReferences(t *testing.T) {
	used := make(map[string]bool)
	for _, ref := range regexp.MustCompile(`"\$ref": "#/components/(\w+/\w+)"`).FindAllSubmatch(openAPI, -1) {
		used[string(ref[1])] = true
	}
	there := make(map[string]bool)
	for kind, all := range description["components"].(object) {
		for name := range all.(object) {
			if kind != "securitySchemes" {
				there[kind+"/"+name] = true
			}
		}
	}
	if !maps.Equal(used, there) {
		t.Errorf("used: %v\nthere: %v", slices.Sorted(maps.Keys(used)), slices.Sorted(maps.Keys(there)))
	}
}

// The codes of problems are described here and in the README as they are.
func TestCodesAreDescribed(t *testing.T) {
	var described []string
	for _, code := range asList(resolve(object{"$ref": "#/components/schemas/Code"})["enum"]) {
		described = append(described, code.(string))
	}
	known := slices.Collect(maps.Keys(problems))
	slices.Sort(known)
	if !slices.Equal(described, known) {
		t.Errorf("described: %v\nknown: %v", described, known)
	}
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for code, kind := range problems {
		if row := fmt.Sprintf("| `%s` | %d |", code, kind.status); !strings.Contains(string(readme), row) {
			t.Errorf("the README has no row that begins with %s", row)
		}
	}
}
