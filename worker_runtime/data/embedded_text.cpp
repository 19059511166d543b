#include "worker_runtime/data/embedded_text.hpp"

namespace dtrun::runtime {

std::string_view embedded_text() {
  static constexpr std::string_view kText = R"text(THE FOUR BELLS OF THE HARBOUR

1. The bells

There was once a harbour with four bells. Each bell stood on its own rock, and each rock had its own keeper. The first
keeper was called Ada, the second was called Bram, the third was called Cora, and the fourth was called Dov. When the
fog came in from the sea, the ships could not see the rocks, and so the keepers rang the bells. A ship that heard all
four bells knew where it was. A ship that heard only three bells knew that something was wrong, and it waited.

The rule of the harbour was simple. The bells had to ring together. If one keeper was late, the others held the rope
and counted. They counted to one hundred, slowly, and if the late keeper had still not come, they lit a lamp and sent
a boat. Nobody in the harbour liked to light the lamp. But everybody agreed that a lamp was better than a wreck.

Every evening the four keepers met at the stone table on the quay. Each of them had a small book, and in the book was
written what had been seen from the rock that day: the wind, the tide, the ships, the birds. No keeper had seen all of
it. Ada saw the north and Bram saw the east. Cora saw the south and Dov saw the west. So they read their books aloud,
always in the same order, and they added what they had read. Then each of them wrote the sum into the book, and each
of them went home with the same page.

"Why must we always read in the same order?" asked Dov, who was the youngest. "A sum is a sum."

"A sum of whole stones is a sum of whole stones," said Ada, who was the oldest. "But we round our numbers when we
write them down, and a number that is rounded remembers the order in which it was made. If we read in the same order
each evening, then all four books agree to the last mark. And if one day the books do not agree, then we know that
somebody made a mistake, and we can look for it. If we read in any order we like, then the books will never quite
agree, and we will never know."

Dov thought about this for a long time. Then he wrote it on the first page of his book.

2. The wind

In the month of the first frost the wind turned to the north and stayed there. It blew over the hill and over the
roofs, and it pulled at the ropes of the boats. The water in the harbour was grey in the morning, and green at noon,
and black at night. The gulls stood on the wall with their heads under their wings and did not fly.

Ada walked along the wall and looked at the rope of every boat. A rope that is sound is quiet. A rope that is about to
break makes a small dry sound, like a person who has something to say and does not say it. She found two ropes that
made this sound, and she changed them before the night came. "A rope is cheap," she said. "A boat is not cheap. And
what is in the boat is not to be had for any money."

In the night the wind was stronger than anybody could remember. It took the roof of the old net house and carried it
over the street. It took the sign of the baker and laid it down on the steps of the school. But all the boats were in
the harbour in the morning, and every one of them was tied to the wall.

The people came out of their houses and looked at the boats. They did not say much. They brought wood and nails, and
they repaired the roof of the net house. The baker hung up the sign again. The children asked if there would be a
school day, and the teacher said that there would be one, and so the day became a day like any other day.

3. The boat that came late

On the third day of the wind a boat came to the harbour. It was a small boat with a brown sail, and there were two
people in it. They had been at sea for nine days. They had heard the bells in the night, but they had heard only three
of them, and they knew the rule, and so they had waited outside until the morning.

"You did well," said Cora. "The fourth bell is mine, and the rope of my bell was frozen. I held the lamp, but the snow
was so thick that you could not see it. If you had come in at night you would have come in over my rock."

"We counted the bells," said the woman in the boat. "One, two, three. And then we counted them again. One, two, three.
My brother said that three bells were enough. I said that four bells are four bells."

Her brother looked at the water and said nothing. After a while he said, "She is right more often than I am. But I am
the better cook."

They stayed in the harbour for the rest of the winter. The woman repaired the clock of the tower, which had been slow
for years. The brother cooked for the keepers, and it was true that he was a good cook. He made a soup of fish and
onions and a little lemon, and a bread with seeds in it, and when the keepers came down from their rocks in the cold
morning the soup was on the table and the bread was warm.

4. The clock

The clock of the tower had two faces, one to the sea and one to the town. The face to the sea was for the ships, and
the face to the town was for the people. Once, long ago, the two faces had shown the same time. But the wheel that
drove the face to the town had lost a tooth, and so the town was always a little later than the sea.

Nobody had noticed it, because nobody stood on both sides of the tower at the same time. The fishermen said that the
people of the town were slow. The people of the town said that the fishermen were always in a hurry. It was an old
quarrel, and there were songs about it.

The woman with the brown sail climbed the tower with a lamp and a file. She looked at the wheels for one whole day and
did not touch them. On the second day she drew the wheels on a sheet of paper, one by one, and wrote on each of them
how many teeth it had. On the third day she said, "Sixty, sixty, sixty, fifty-nine."

She made a new wheel of brass. It had sixty teeth. When it was in its place she let the clock run, and she went down,
and walked around the tower, and looked at the face to the sea, and walked around the tower again, and looked at the
face to the town. Then she sat down on the steps and was content.

The next morning the fishermen and the people of the town came to the market at the same time, and there were not
enough tables. It took a week until they understood what had happened. After that the quarrel was over, but the songs
were good songs, and the people went on to sing them.

5. What the keepers wrote

Here is a page from the book of Ada: "Wind from the north, strong. Tide high at six. Four ships passed, two of them
with white sails, one with a red sail, one with no sail at all, towed by a fifth. Counted the fifth as a ship also.
Five ships. Birds: many. Rope of the bell: good."

Here is a page from the book of Bram: "Wind from the north, I think. It is hard to say behind the hill. Tide as Ada
says. One ship, far away. I looked at it for an hour and it did not move. Then I cleaned the glass, and it was gone.
It was not a ship. Rope of the bell: good. Glass: clean."

Here is a page from the book of Cora: "Snow. Could not see the sea. Could not see the lamp. Could not see my hand. I
rang the bell and heard the other bells, and so I know that they are there. Rope of the bell: frozen, then good."

Here is a page from the book of Dov: "Wind, waves, birds, clouds, one ship, one seal. The seal looked at me and I
looked at the seal. Rang the bell at the right time. Rang it again because it was beautiful. Ada says that I must not
do that. Rope of the bell: good."

And here is the page that all four of them wrote together: "Wind from the north. Tide high at six. Five ships and no
more. Snow in the south. One seal. All ropes good. All bells rang together."

6. How a bell is made

A bell is made from copper and tin. To ten parts of copper belong three parts of tin, and a little less if the bell is
large. The metal is melted in the oven until it is as bright as the sun and as thin as water. In the ground there is a
form of clay. The form has an inner part and an outer part, and between them is a space, and the space has the shape
of the bell. The metal runs into the space and fills it from below, and the air goes out above.

Then everybody must wait. A bell that cools too fast will break. A small bell needs a day, a large bell needs a week,
and a very large bell needs a month. It is hard to wait, because nobody knows if the bell is good until it is out of
the ground. The old bell maker used to say that he had learned two things in his life: how to melt metal, which took
him a year, and how to wait, which took him forty.

When the bell is cold it is dug out and cleaned. Then it is struck for the first time. It has not one tone but many: a
low tone that stays, a tone in the middle that gives the bell its name, and a high tone that goes away at once. If the
tones agree with each other, the bell is good. If they do not agree, a little metal is cut away on the inside, here or
there, and it is struck again. Cut and strike, cut and strike, each time a little less, until the error is so small
that no ear can find it.

"How do you know where to cut?" asked Dov.

"I strike it and listen how wrong it is," said the bell maker. "Then I ask myself which part of the bell makes it
wrong, and how much. Then I cut there, but less than I think. If I cut too much I cannot put it back. If I cut too
little I come again tomorrow. It is better to take many small steps in the right direction than one great step in the
direction that looked right at first."

7. The fifth bell

In the spring the council of the harbour decided that there should be a fifth bell, because more ships came every
year. The council thought that the work would be simple. There were four bells and four keepers, and so five bells
would need five keepers. But the rule of the harbour said four. It was written on the wall of every house, it was
taught in the school, and it was sung by the children: one, two, three, four, come to the shore.

If the fifth bell began to ring on some day, then a ship that did not know of it would hear five bells and wonder. And
a ship that knew of it, and heard only four, would wait outside for ever. So the keepers sat down at the stone table
and thought about it for three evenings.

On the first evening Bram said, "Let us ring five bells from tomorrow on, and the ships will learn it." But the others
said that a ship learns it only once, and then on a rock.

On the second evening Cora said, "Let us ring the fifth bell with a different tone." But the others said that in a
storm one tone is like the other tone.

On the third evening Dov said, "Let us stop all the bells at the same moment, and hang a white flag on the tower. The
flag says: count again. A ship that sees the flag, or that hears no bell at all, stays where it is. Then we begin
again, all five together, from the first stroke. Nobody has to know how many bells there were before. They only have
to count how many there are now, and we will tell them how many there should be."

The others were silent for a moment. "It costs us one hour without bells," said Bram.

"Yes," said Dov. "But after that hour everybody agrees."

And so it was done. The bells stopped, the flag went up, and the harbour was so quiet that the people came to their
doors. Then the flag came down, and the five bells began together. The ships counted, one, two, three, four, five, and
came in one after the other, the large ones first and the small ones behind them.

8. Summer

In the summer there was no fog, and the keepers had little to do. Ada painted her boat. She painted it blue, and when
it was dry she did not like the blue, and she painted it green. Bram read a book about mountains, which he had never
seen. Cora slept. She said that she had to sleep for the whole winter that had been and for the whole winter that was
to come. Dov taught the children of the harbour how to tie a knot, and how to read the clouds, and how to count.

"Count the boats," said Dov, and the children counted the boats. "How many are there?"

"Twelve," said one child. "Thirteen," said another child. "Eleven," said the smallest one.

"Then let us do it together," said Dov. "You count the boats at the wall. You count the boats at the quay. And you
count the boats out on the water. Then each of you tells the others what you have counted, in order, and each of you
adds it."

"Four at the wall," said the first. "Six at the quay," said the second. "Two on the water," said the smallest one, and
then, after a while, "and a seal."

"Four and six are ten, and two are twelve," said all of them, and the smallest one said, "and a seal."

"Twelve boats and one seal," said Dov. "Now write it down, all of you, and let us see if the books agree."

They wrote it down, and the books agreed.

9. The letter

At the end of the summer a letter came from another harbour, far in the south. It said: "We have heard that your bells
ring together, and that your books agree. We have twenty bells and a hundred keepers, and our bells do not ring
together, and our books do not agree. Please tell us what to do."

The keepers wrote an answer, and each of them wrote a part of it. Ada wrote: "Read in the same order, every time." And
Bram wrote: "Before you ring, ask the others what they are about to ring. If one of them says something else, stop,
and find out why, before a ship is on the rocks." And Cora wrote: "Do not wait for ever. Count to one hundred, and
then light the lamp, and say aloud whose bell is missing." And Dov wrote: "If you have to change something, stop all
the bells and begin again together. It is not a shame to begin again. It is only a shame to go on with a wrong count."

Under the answer there was some space left on the page. So they read it again, and they thought about what might still
be missing. Then the smallest child, who had been sitting under the table the whole time, took the pen, and drew a
seal.
)text";
  return kText;
}

}  // namespace dtrun::runtime
