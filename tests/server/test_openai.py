"""The server as people use it: through the `openai` package. `./dev wheel --test` has it; elsewhere it is skipped."""

import time
import unittest

try:
    import openai
except ImportError:
    openai = None

from running import TEXT, TIMEOUT, Served

QUESTION = [{"role": "system", "content": TEXT[:600]}, {"role": "user", "content": "Say something."}]


@unittest.skipUnless(openai, "the package openai is not installed (./dev wheel --test has it)")
class OpenAI(Served):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        base = f"http://{cls.server.host}:{cls.server.port}/v1"
        cls.client = openai.OpenAI(base_url=base, api_key="none", max_retries=0)
        cls.model = cls.client.models.list().data[0].id

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        super().tearDownClass()

    def chat(self, **more):
        return self.client.chat.completions.create(model=self.model, messages=QUESTION, temperature=0, **{"max_tokens": 8, **more})

    def test_chats_whole_and_streamed(self):
        whole = self.chat()
        self.assertEqual(whole.usage.completion_tokens, 8)
        chunks = list(self.chat(stream=True, stream_options={"include_usage": True}))
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(chunks[-1].usage.total_tokens, whole.usage.total_tokens)
        self.assertGreater(chunks[-1].usage.prompt_tokens_details.cached_tokens, 0)
        self.assertEqual([c.choices[0].finish_reason for c in chunks if c.choices][-1], "length")

    def test_the_next_turn_goes_on_from_the_answer(self):
        messages = [{"role": "user", "content": TEXT[:4000]}]
        first = self.client.chat.completions.create(model=self.model, messages=messages, temperature=0, max_tokens=8)
        messages += [{"role": "assistant", "content": first.choices[0].message.content}, {"role": "user", "content": "And?"}]
        second = self.client.chat.completions.create(model=self.model, messages=messages, temperature=0, max_tokens=4)
        self.assertGreaterEqual(second.usage.prompt_tokens_details.cached_tokens, first.usage.prompt_tokens)

    def test_choices_and_log_probabilities(self):
        answer = self.chat(n=2, logprobs=True, top_logprobs=3)
        self.assertEqual([c.index for c in answer.choices], [0, 1])
        first = answer.choices[0].logprobs.content[0]
        self.assertEqual(first.top_logprobs[0].token, first.token)
        self.assertAlmostEqual(first.top_logprobs[0].logprob, first.logprob)

    def test_texts_stops_and_ids(self):
        answer = self.client.completions.create(model=self.model, prompt="def f(x):\n    return", max_tokens=40, temperature=0, stop=["\n"])
        self.assertNotIn("\n", answer.choices[0].text)
        self.assertEqual(answer.choices[0].finish_reason, "stop")
        ids = self.client.completions.create(model=self.model, prompt=[5, 6, 7], max_tokens=2, temperature=0)
        self.assertEqual(ids.usage.prompt_tokens, 3)

    def test_answers_of_a_class(self):
        import pydantic

        class Bill(pydantic.BaseModel):
            to: str = pydantic.Field(max_length=10)
            euros: int = pydantic.Field(ge=0, le=500)

        answer = self.client.chat.completions.parse(model=self.model, messages=QUESTION, max_tokens=80, response_format=Bill)
        self.assertIsInstance(answer.choices[0].message.parsed, Bill)

    def test_responses(self):
        answer = self.client.responses.create(model=self.model, input="Say something.", instructions="Be short.", max_output_tokens=8,
                                              temperature=0)
        self.assertTrue(answer.output_text)
        events = list(self.client.responses.create(model=self.model, input="Say something.", instructions="Be short.",
                                                   max_output_tokens=8, temperature=0, stream=True))
        text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
        self.assertEqual(text, answer.output_text)
        self.assertEqual(events[-1].type, "response.incomplete" if answer.status == "incomplete" else "response.completed")

    def test_errors_are_the_package_s_own(self):
        with self.assertRaisesRegex(openai.BadRequestError, "temperature"):
            self.chat(extra_body={"temperature": 9})
        with self.assertRaises(openai.NotFoundError):
            self.client.embeddings.create(model=self.model, input="a")

    def test_a_stream_that_is_left_ends_its_work(self):
        before = self.server.metric("requests_cancelled_total")
        with self.chat(stream=True, max_tokens=2000, logit_bias={str(t): -100 for t in self.ends()}) as stream:
            next(iter(stream))
        deadline = time.monotonic() + TIMEOUT
        while self.server.metric("requests_cancelled_total") == before and time.monotonic() < deadline:
            time.sleep(0.02)
        self.assertEqual(self.server.metric("slots_busy"), 0)

    def ends(self):
        return self.server.ask("/tokenize", {"content": "<|im_end|><|endoftext|>", "parse_special": True})[1]["tokens"]


if __name__ == "__main__":
    unittest.main()
