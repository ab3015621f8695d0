package prompt

import "maps"

type how uint8

const (
	asIgnored how = iota

	// Top-level members of the prompt.
	asSetting // changes the template
	asTrue    // the same, true by default
	asFalse   // the same, false by default
	asSorted  // the same, members sorted
	asChoice  // the same, some values left out
	asMedia   // the same, by hash
	asTools
	asSystem
	asMessages
	asItems
	asPrompt

	// Members of messages, tools, parts and items.
	asText // behind the mark
	asArguments
	asContent
	asNested // content of a part
	asFailed
	asCalls
	asCall
	asCallBody
	asToolType
	asToolBody
	asSchema
	asJSON
	asURL
	asKind
	asExtra

	// Top-level members that concern the request.
	asRoot // into root[slot]
	asStream
	asMaxTokens // into controls.max[slot]
	asSession   // into controls.session[slot]
	asSessionObject
	asOptions
	asSampling
	asSteering // cut out unless Options.Control
	asResponseID
	asExtraArgs
)

type field struct {
	slot slot
	how  how
	mark byte
}

const (
	sessionID   = 0 // the slot of session_id
	sessionUser = 4 // the slot of metadata, whose user_id names the session
)

// Members in template order; slots count from 1.
type inOrder []struct {
	name string
	how  how
	mark byte
}

// For a dozen names comparing is faster than a map.
func (list inOrder) find(name []byte) field {
	for i := range list {
		if m := &list[i]; m.name == string(name) {
			return field{slot(i + 1), m.how, m.mark}
		}
	}
	return field{}
}

// Spans by slot; slot 0 is before the members.
type parts [11]span

var common = map[string]field{
	"model":      {rootModel, asRoot, 0},
	"lora_path":  {rootLoRA, asRoot, 0},
	"cache_salt": {rootSalt, asRoot, 0},
	"extra_key":  {rootExtra, asRoot, 0},

	"stream":                {0, asStream, 0},
	"stream_options":        {0, asOptions, 0},
	"max_completion_tokens": {0, asMaxTokens, 0},
	"max_output_tokens":     {1, asMaxTokens, 0},
	"max_tokens":            {2, asMaxTokens, 0},
	"sampling_params":       {3, asSampling, 0},

	"session_id":       {sessionID, asSession, 0},
	"user":             {1, asSession, 0},
	"user_id":          {2, asSession, 0},
	"session_params":   {3, asSessionObject, 0},
	"metadata":         {sessionUser, asSessionObject, 0},
	"prompt_cache_key": {5, asSession, 0},

	"kv_transfer_params":        {0, asSteering, 0},
	"ec_transfer_params":        {0, asSteering, 0},
	"kv_cache_report_mode":      {0, asSteering, 0},
	"data_parallel_rank":        {0, asSteering, 0},
	"data_parallel_rank_decode": {0, asSteering, 0},
	"routed_dp_rank":            {0, asSteering, 0},
	"disagg_prefill_dp_rank":    {0, asSteering, 0},
	"decode_tp_size":            {0, asSteering, 0},
	"vllm_xargs":                {0, asExtraArgs, 0},

	"truncate_prompt_tokens": {slotTruncate, asSetting, markSetting},
	"mm_processor_kwargs":    {slotMediaArgs, asSorted, markSetting},
}

var chat = map[string]field{
	"messages":               {slotMessages, asMessages, 0},
	"tools":                  {slotTools, asTools, markTool},
	"functions":              {slotFunctions, asTools, markFunction},
	"tool_choice":            {slotChoice, asChoice, markSetting},
	"documents":              {slotDocuments, asSetting, markSetting},
	"chat_template":          {slotTemplate, asSetting, markSetting},
	"chat_template_kwargs":   {slotTemplateArgs, asSorted, markSetting},
	"reasoning":              {slotReasoning, asSorted, markSetting},
	"reasoning_effort":       {slotEffort, asSetting, markSetting},
	"add_special_tokens":     {slotSpecial, asFalse, markSetting},
	"continue_final_message": {slotContinue, asFalse, markTail},
	"add_generation_prompt":  {slotGeneration, asTrue, markTail},
}

var messages = map[string]field{
	"messages":    {slotMessages, asMessages, 0},
	"system":      {slotSystem, asSystem, 0},
	"tools":       {slotTools, asTools, markTool},
	"tool_choice": {slotChoice, asChoice, markSetting},
	"thinking":    {slotReasoning, asSorted, markSetting},

	"chat_template_kwargs": {slotTemplateArgs, asSorted, markSetting},
}

var perKind = [kinds]map[string]field{
	Chat: chat,
	Completion: {
		"prompt":             {slotPrompt, asPrompt, 0},
		"prompt_embeds":      {slotEmbeds, asMedia, markSetting},
		"suffix":             {slotSuffix, asSetting, markTail},
		"add_special_tokens": {slotSpecial, asTrue, markSetting},
	},
	Responses: {
		"input":                {slotMessages, asItems, 0},
		"instructions":         {slotSystem, asSystem, 0},
		"tools":                {slotTools, asTools, markTool},
		"tool_choice":          {slotChoice, asChoice, markSetting},
		"reasoning":            {slotReasoning, asSorted, markSetting},
		"previous_response_id": {slotPrevious, asSetting, markSetting},
		"prompt":               {slotStored, asSorted, markSetting},
		"chat_template_kwargs": {slotTemplateArgs, asSorted, markSetting},
		"request_id":           {0, asResponseID, 0},
	},
	Embeddings:  with(chat, map[string]field{"input": {slotPrompt, asPrompt, 0}}),
	Messages:    messages,
	CountTokens: messages,
	Generate: {
		"text":         {slotPrompt, asPrompt, 0},
		"input_ids":    {slotIDs, asPrompt, 0},
		"input_embeds": {slotEmbeds, asMedia, markSetting},
		"image_data":   {slotImages, asMedia, markSetting},
		"audio_data":   {slotAudio, asMedia, markSetting},
		"video_data":   {slotVideo, asMedia, markSetting},
	},
	Tokenize:   with(chat, map[string]field{"prompt": {slotPrompt, asPrompt, 0}}),
	Detokenize: {"tokens": {slotPrompt, asPrompt, 0}},
	Score: {
		"text_1":    {slotFirst, asPrompt, 0},
		"queries":   {slotFirstB, asPrompt, 0},
		"query":     {slotFirstC, asPrompt, 0},
		"data_1":    {slotFirstD, asPrompt, 0},
		"text_2":    {slotSecond, asPrompt, markSecond},
		"documents": {slotSecondB, asPrompt, markSecond},
		"items":     {slotSecondC, asPrompt, markSecond},
		"data_2":    {slotSecondD, asPrompt, markSecond},
	},
	Rerank: {
		"query":     {slotFirst, asPrompt, 0},
		"documents": {slotSecond, asPrompt, markSecond},
	},
	Pooling: with(chat, map[string]field{
		"input": {slotPrompt, asPrompt, 0},
		"data":  {slotSecond, asPrompt, markSecond},
	}),
}

func with(base, more map[string]field) map[string]field {
	all := maps.Clone(base)
	maps.Copy(all, more)
	return all
}
