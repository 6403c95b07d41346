package build

// formV2 writes Swagger 2.0.
type formV2 struct{}

func (formV2) parameter(in, name, typ string, required bool) map[string]any {
	p := map[string]any{"in": in, "name": name, "type": typ, "uniqueItems": true}
	if required {
		p["required"] = true
	}
	return p
}

func (formV2) body(op map[string]any, model string, contentTypes []string) {
	list, _ := op["parameters"].([]any) // an operation without query parameters has none yet
	op["parameters"] = append(list, map[string]any{
		"in": "body", "name": "body", "required": true, "schema": map[string]any{"$ref": "#/definitions/" + model},
	})
	op["consumes"] = contentTypes
}

func (formV2) response(model string) map[string]any {
	r := map[string]any{"description": "OK", "schema": map[string]any{"type": "string"}}
	if model != "" {
		r["schema"] = map[string]any{"$ref": "#/definitions/" + model}
	}
	return r
}

// formV3 writes OpenAPI 3.0.
type formV3 struct{}

func (formV3) parameter(in, name, typ string, required bool) map[string]any {
	p := map[string]any{"in": in, "name": name, "schema": map[string]any{"type": typ, "uniqueItems": true}}
	if required {
		p["required"] = true
	}
	return p
}

func (formV3) body(op map[string]any, model string, contentTypes []string) {
	op["requestBody"] = map[string]any{"required": true, "content": contentV3(model, contentTypes)}
}

func (formV3) response(model string) map[string]any {
	if model == "" {
		return map[string]any{"description": "OK", "content": map[string]any{
			"text/plain": map[string]any{"schema": map[string]any{"type": "string"}},
		}}
	}
	return map[string]any{"description": "OK", "content": contentV3(model, objectTypes)}
}

func contentV3(model string, contentTypes []string) map[string]any {
	content := map[string]any{}
	for _, contentType := range contentTypes {
		content[contentType] = map[string]any{"schema": map[string]any{"$ref": "#/components/schemas/" + model}}
	}
	return content
}
